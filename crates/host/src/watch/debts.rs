// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who owes which grace period now: for whoever schedules by it, many times per second.
//!
//! A look is one system call per VM, which reads `gp_seq` and the leaves of the `rcu_node` tree at
//! addresses that are known since the guest was found; [`Watch::snapshot`] copies everything.

use super::Watch;
use super::model::VmState;
use super::raw::constants::NO_SEQ;
use super::raw::read_words;
use super::vms::machine::{Attached, Machine};
use reprieve_guest::layout::NodeLayout;

/// A guest's grace period at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraceNow {
    /// The VMM's process.
    pub pid: u32,
    /// `rcu_state.gp_seq`; `None` where the guest cannot be read, or is paused.
    pub seq: Option<u64>,
    /// When the grace period in progress was seen to begin, if it was.
    pub began_ns: Option<u64>,
    /// Threads of the vCPUs that owe it a quiescent state, or run a reader that the guest's own
    /// scheduler had preempted before.
    pub owing: Vec<u32>,
    /// Since when a vCPU of this VM, the one that is longest, has been off its CPU against its
    /// will.
    pub preempted_since_ns: Option<u64>,
}

impl Watch {
    /// The grace periods of all VMs.
    pub fn grace_periods(&self) -> Vec<GraceNow> {
        let machines = self.machines.lock();
        machines.values().filter(|machine| machine.ended.is_none()).map(grace_now).collect()
    }
}

fn grace_now(machine: &Machine) -> GraceNow {
    let mut now = GraceNow {
        pid: machine.key.pid,
        seq: None,
        began_ns: None,
        owing: Vec::new(),
        preempted_since_ns: None,
    };
    let attached = machine.attached.as_ref().filter(|_| machine.state == VmState::Watching);
    let Some((attached, rcu)) = attached.and_then(|a| Some((a, a.layout.rcu.as_ref()?))) else {
        return now;
    };
    let leaves = &rcu.leaves;
    let masks = leaves.iter().map(|leaf| leaf.qsmask);
    let addresses: Vec<u64> = [rcu.gp_seq]
        .into_iter()
        .chain(masks)
        .chain(leaves.iter().filter_map(|l| l.gp_tasks))
        .collect();
    let Ok(words) = read_words(machine.key.pid, &addresses) else { return now };
    let (seq, rest) = (words[0], &words[1..]);
    let (masks, blocked) = rest.split_at(leaves.len());
    now.seq = Some(seq);
    now.began_ns = machine.began().and_then(|(began_seq, began)| {
        (began_seq != NO_SEQ && began_seq >> 2 == seq >> 2).then_some(began)
    });
    now.preempted_since_ns = machine.vcpus.iter().filter_map(|v| v.slot.preempted_since()).min();
    if seq & 3 == 0 {
        return now;
    }
    // A list of preempted readers takes more reads, and is there seldom.
    let running = match blocked.iter().any(|&first| first != 0) {
        true => cpus_with_blocked_readers(machine, attached),
        false => Vec::new(),
    };
    let owes = |cpu: u32| owes(leaves, masks, cpu) || running.contains(&cpu);
    let owing = machine.vcpus.iter().filter(|vcpu| vcpu.cpu.is_some_and(owes));
    now.owing = owing.map(|vcpu| vcpu.slot.tid()).collect();
    now
}

/// Whether the bit of `cpu` is set in the `qsmask` of its leaf.
fn owes(leaves: &[NodeLayout], masks: &[u64], cpu: u32) -> bool {
    leaves.iter().zip(masks).any(|(leaf, mask)| {
        let bit = cpu.wrapping_sub(leaf.first_cpu);
        (leaf.first_cpu..=leaf.last_cpu).contains(&cpu) && bit < 64 && mask & (1 << bit) != 0
    })
}

/// The guest's CPUs that run, now, a reader for which the grace period waits.
fn cpus_with_blocked_readers(machine: &Machine, attached: &Attached) -> Vec<u32> {
    let owing = attached.guest.rcu().and_then(|rcu| rcu.owing());
    let Ok(owing) = owing else { return Vec::new() };
    let runs = |&cpu: &u32| {
        let task = attached.guest.vcpu(cpu).and_then(|view| view.current_task_address());
        task.is_ok_and(|task| owing.blocked.iter().any(|reader| reader.task.address == task))
    };
    machine.vcpus.iter().filter_map(|vcpu| vcpu.cpu).filter(runs).collect()
}
