// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses and offsets of a kernel's RCU state, computed once per boot.
//!
//! `rcu_state` holds a tree of `rcu_node`s in an array, the root first, level by level
//! (`kernel/rcu/tree.h`). The leaves are those of the last level; each is for the CPUs
//! `grplo..=grphi`. The tree's shape is fixed early at boot.

use super::grace::{Model, Preemption};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::kernel::btf::Field;

/// Nodes of a tree: 8192 CPUs in leaves of 16 come to fewer.
const NODES_MAX: u64 = 1024;

/// Kernel addresses and field offsets of tree RCU.
#[derive(Clone, Debug)]
pub(crate) struct RcuMap {
    /// Guest-physical address of `rcu_state.gp_seq`.
    pub gp_seq: u64,
    pub gp_start: Option<u64>,
    pub gp_kthread: Option<u64>,
    pub fqs_due: Option<u64>,
    pub leaves: Vec<Leaf>,
    pub model: Model,
    /// Offset of `task_struct.rcu_node_entry`.
    pub node_entry: Option<u64>,
    /// Offset of the number of a task's CPU in `task_struct`.
    pub task_cpu: Option<u64>,
    /// Offset of `task_struct.on_rq`.
    pub task_on_rq: Option<u64>,
    /// Offset of `task_struct.__state`, or `state`.
    pub task_state: Option<u64>,
    /// Offset of `rcu_data.gp_seq`.
    pub data_gp_seq: u64,
}

/// A leaf of the tree. Kernel addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub qsmask: u64,
    pub gp_tasks: Option<u64>,
    /// The head of the list of preempted readers.
    pub blkd_tasks: Option<u64>,
    pub first_cpu: u32,
    pub last_cpu: u32,
}

impl RcuMap {
    pub fn new(kernel: &Kernel) -> Result<RcuMap> {
        let (memory, types) = (&kernel.memory, &kernel.types);
        let state = kernel.symbols.address("rcu_state")?;
        let at =
            |field: &str| Ok::<_, Error>(state.wrapping_add(types.offset_of("rcu_state", field)?));
        Ok(RcuMap {
            gp_seq: memory.translate(at("gp_seq")?)?,
            gp_start: at("gp_start").ok(),
            gp_kthread: at("gp_kthread").ok(),
            fqs_due: at("jiffies_force_qs").ok(),
            leaves: leaves(kernel, state)?,
            model: model(kernel),
            node_entry: types.offset_of("task_struct", "rcu_node_entry").ok(),
            task_cpu: types
                .offset_of("task_struct", "thread_info.cpu")
                .or_else(|_| types.offset_of("task_struct", "cpu"))
                .ok(),
            task_on_rq: types.offset_of("task_struct", "on_rq").ok(),
            // A long before 5.14; the low half is the same.
            task_state: types
                .offset_of("task_struct", "__state")
                .or_else(|_| types.offset_of("task_struct", "state"))
                .ok(),
            data_gp_seq: types.offset_of("rcu_data", "gp_seq")?,
        })
    }
}

fn leaves(kernel: &Kernel, state: u64) -> Result<Vec<Leaf>> {
    let (memory, symbols, types) = (&kernel.memory, &kernel.symbols, &kernel.types);
    let corrupt = |detail: String| Error::corrupt("rcu_state", detail);
    let Field { offset, elements, .. } = types.field("rcu_state", "node")?;
    let size = types.size_of("rcu_node")?;
    let levels = memory.u32(symbols.address("rcu_num_lvls")?)?;
    let count = u64::from(memory.u32(symbols.address("rcu_num_nodes")?)?);
    if count == 0 || count > elements || count > NODES_MAX || levels == 0 || levels > 4 {
        return Err(corrupt(format!("{count} nodes in {levels} levels")));
    }
    let field = |name: &str| types.field("rcu_node", name);
    let (level, low, high) = (field("level")?, field("grplo")?, field("grphi")?);
    let qsmask = field("qsmask")?.offset;
    let (gp_tasks, blkd_tasks) = (field("gp_tasks").ok(), field("blkd_tasks").ok());
    let mut leaves = Vec::new();
    for index in 0..count {
        let node = state.wrapping_add(offset).wrapping_add(index * size);
        let number = |field: Field| memory.unsigned(node.wrapping_add(field.offset), field.size);
        if number(level)?.checked_add(1) != Some(levels.into()) {
            continue;
        }
        let (first, last) = (number(low)?, number(high)?);
        if first > last || last - first >= 64 || last >= u64::from(crate::state::vcpu::CPUS_MAX) {
            return Err(corrupt(format!("a node for CPUs {first} to {last}")));
        }
        let at = |field: Field| node.wrapping_add(field.offset);
        leaves.push(Leaf {
            qsmask: node.wrapping_add(qsmask),
            gp_tasks: gp_tasks.map(at),
            blkd_tasks: blkd_tasks.map(at),
            first_cpu: first as u32,
            last_cpu: last as u32,
        });
    }
    Ok(leaves)
}

/// `chosen`: where the model is chosen at boot, the choice, which is made before the first task
/// runs. Else the functions in the kernel tell.
fn preemption(chosen: Option<Option<i32>>, has: impl Fn(&str) -> bool) -> Preemption {
    match chosen {
        // Spinlocks that sleep.
        _ if has("rt_spin_lock") => Preemption::RealTime,
        Some(Some(0)) => Preemption::None,
        Some(Some(1)) => Preemption::Voluntary,
        Some(Some(2)) => Preemption::Full,
        Some(Some(3)) => Preemption::Lazy,
        Some(_) => Preemption::Unknown,
        None if has("preempt_schedule") => Preemption::Full,
        None => Preemption::None,
    }
}

fn model(kernel: &Kernel) -> Model {
    let (memory, symbols) = (&kernel.memory, &kernel.symbols);
    let has = |name: &str| symbols.get(name).is_some();
    let chosen = symbols.get("preempt_dynamic_mode").map(|s| memory.i32(s.address).ok());
    let preemption = preemption(chosen, has);
    Model {
        preemptible_rcu: kernel.types.has("task_struct", "rcu_read_lock_nesting"),
        // Preemption in the kernel needs the count.
        counts_preemption: has("preempt_schedule"),
        preemption,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_kernel_is_not_shown_as_full() {
        let of = |chosen, symbols: &[&str]| preemption(chosen, |name| symbols.contains(&name));
        let real_time = ["preempt_schedule", "rt_spin_lock"];
        for chosen in [None, Some(Some(2)), Some(Some(3))] {
            assert_eq!(of(chosen, &real_time), Preemption::RealTime);
        }
        assert_eq!(of(None, &["preempt_schedule"]), Preemption::Full);
        assert_eq!((of(Some(Some(3)), &[]), of(None, &[])), (Preemption::Lazy, Preemption::None));
        assert_eq!(of(Some(None), &[]), Preemption::Unknown);
    }
}
