// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's RCU: the grace period in progress, and the CPUs and tasks that hold it up.
//!
//! These structures change while they are read, and their locks cannot be taken from here. Fields
//! that belong together are read between two reads of `gp_seq`, and read again if that changed.
//! Once a grace period has begun, the bit of a CPU only changes from owing to not owing, so a slow
//! read may name a CPU too many, never one too few. While it begins, CPUs may be missing: `gp_seq`
//! changes before the leaves' masks are set.

pub mod grace;
pub(crate) mod map;

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::layout::{NodeLayout, RcuLayout};
use crate::state::clock::Clock;
use crate::state::task::{Task, TaskOffsets, task_offset};
use crate::state::vcpu::Cpus;
use grace::{BlockedReader, GracePeriod, KthreadState, Model, Owing, RcuData};
use map::{Leaf, RcuMap};
use std::collections::HashSet;
use std::time::Duration;

/// Preempted readers that are listed, of all leaves.
const BLOCKED_MAX: usize = 256;

/// Times that a torn read is repeated.
const RETRIES: u32 = 4;

/// A guest's RCU. Each call reads it anew.
#[derive(Clone, Copy)]
pub struct Rcu<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) map: &'a RcuMap,
    pub(crate) clock: &'a Clock,
    pub(crate) cpus: &'a Cpus,
    pub(crate) tasks: &'a TaskOffsets,
}

impl Rcu<'_> {
    /// `rcu_state.gp_seq`: one read, for polling.
    pub fn seq(&self) -> Result<u64> {
        self.kernel.memory.u64_physical(self.map.gp_seq)
    }

    /// The grace period in progress, if any.
    pub fn grace_period(&self) -> Result<GracePeriod> {
        let memory = &self.kernel.memory;
        let read = |address: Option<u64>| address.map(|a| memory.u64(a)).transpose();
        let mut seq = self.seq()?;
        let mut attempts = 0;
        loop {
            let start_jiffies = read(self.map.gp_start)?;
            let state = self.map.gp_state.map(|a| memory.u16(a)).transpose()?;
            let rounds = read(self.map.n_force_qs)?;
            let jiffies = self.clock.jiffies(memory)?;
            let after = self.seq()?;
            if after != seq && attempts < RETRIES {
                attempts += 1;
                seq = after;
                continue;
            }
            let mut grace_period = GracePeriod {
                seq: after,
                start_jiffies,
                jiffies,
                age: None,
                state: state.map(KthreadState::new),
                force_qs_rounds: rounds,
            };
            if let (true, Some(start), Some(hz)) =
                (grace_period.in_progress(), start_jiffies, self.clock.hz)
            {
                // The two clocks are read one after the other.
                let ticks = jiffies.saturating_sub(start);
                grace_period.age = Some(Duration::from_secs(ticks) / hz);
            }
            return Ok(grace_period);
        }
    }

    /// CPUs and tasks that the grace period in progress still waits for; none without one.
    pub fn owing(&self) -> Result<Owing> {
        let mut owing = Owing::default();
        for _ in 0..=RETRIES {
            owing = Owing { seq: self.seq()?, ..Owing::default() };
            if owing.seq & 3 == 0 {
                return Ok(owing);
            }
            for leaf in &self.map.leaves {
                let mask = self.kernel.memory.u64(leaf.qsmask)?;
                let count = leaf.last_cpu - leaf.first_cpu + 1;
                let owes = |n: &u32| mask & (1 << n) != 0;
                owing.cpus.extend((0..count).filter(owes).map(|n| leaf.first_cpu + n));
                owing.blocked.extend(self.blocked(leaf, BLOCKED_MAX - owing.blocked.len())?);
            }
            if self.seq()? == owing.seq {
                return Ok(owing);
            }
        }
        owing.torn = true;
        Ok(owing)
    }

    /// The readers preempted on CPUs of `leaf` that the grace period waits for: from `gp_tasks` to
    /// the end of the list, `max` at most.
    fn blocked(&self, leaf: &Leaf, max: usize) -> Result<Vec<BlockedReader>> {
        let memory = &self.kernel.memory;
        let (mut blocked, mut seen) = (Vec::new(), HashSet::new());
        let (Some(first), Some(head), Some(entry)) =
            (leaf.gp_tasks, leaf.blkd_tasks, self.map.node_entry)
        else {
            return Ok(blocked);
        };
        let mut at = memory.u64(first)?;
        while at != 0 && at != head && blocked.len() < max {
            // The list changes during this walk: a task that cannot be read has left it, and one
            // that was there already has been moved.
            let address = at.wrapping_sub(entry);
            if !seen.insert(address) {
                break;
            }
            let Ok(task) = Task::read(memory, self.tasks, address) else { break };
            let cpu = self.map.task_cpu.and_then(|o| memory.u32(address.wrapping_add(o)).ok());
            blocked.push(BlockedReader { task, cpu });
            let Ok(next) = memory.u64(at) else { break };
            at = next;
        }
        Ok(blocked)
    }

    /// Whether the kernel counts readers and disabled preemption, and its preemption model.
    pub fn model(&self) -> Model {
        self.map.model
    }

    /// The `rcu_data` of `cpu`.
    pub fn data(&self, cpu: u32) -> Result<RcuData> {
        let area = self.cpus.area(cpu)?;
        let memory = &self.kernel.memory;
        let base = area.rcu_data.ok_or_else(|| Error::NoSymbol { name: "rcu_data".into() })?;
        let offsets = &self.map.data;
        let at = |offset: u64| base.wrapping_add(offset);
        let flag = |offset: Option<u64>| offset.map(|o| Ok(memory.u8(at(o))? != 0)).transpose();
        Ok(RcuData {
            gp_seq: memory.u64(at(offsets.gp_seq))?,
            core_needs_qs: flag(offsets.core_needs_qs)?,
            cpu_no_qs: flag(offsets.cpu_no_qs)?,
            ticks_this_gp: offsets.ticks_this_gp.map(|o| memory.u32(at(o))).transpose()?,
            urgent: flag(offsets.urgent)?,
            callbacks: offsets.callbacks.map(|o| memory.u64(at(o))).transpose()?,
        })
    }

    /// The grace-period kthread's task.
    pub fn kthread(&self) -> Result<Task> {
        let at = self
            .map
            .gp_kthread
            .ok_or_else(|| Error::NoType { name: "rcu_state.gp_kthread".into() })?;
        Task::read(&self.kernel.memory, self.tasks, self.kernel.memory.u64(at)?)
    }

    pub(crate) fn layout(&self) -> Result<RcuLayout> {
        let memory = &self.kernel.memory;
        let host = |address: Option<u64>| address.map(|a| memory.host_address_of(a)).transpose();
        let node = |leaf: &Leaf| {
            Ok(NodeLayout {
                qsmask: memory.host_address_of(leaf.qsmask)?,
                gp_tasks: host(leaf.gp_tasks)?,
                first_cpu: leaf.first_cpu,
                last_cpu: leaf.last_cpu,
            })
        };
        let gp_seq = memory.host_address(self.map.gp_seq);
        // The kthread exists from early in the boot on, and never changes.
        let kthread = self.map.gp_kthread.and_then(|at| memory.u64(at).ok()).filter(|&at| at != 0);
        let of_kthread = |offset: Option<u64>| {
            let address = kthread?.wrapping_add(offset?);
            memory.host_address_of(address).ok()
        };
        Ok(RcuLayout {
            gp_seq: gp_seq.ok_or(Error::NotRam { address: self.map.gp_seq })?,
            gp_start: host(self.map.gp_start)?,
            gp_kthread: host(self.map.gp_kthread)?,
            gp_state: host(self.map.gp_state)?,
            fqs_due: host(self.map.fqs_due)?,
            kthread_task: of_kthread(Some(0)),
            kthread_cpu: of_kthread(self.map.task_cpu),
            kthread_on_rq: of_kthread(self.map.task_on_rq),
            kthread_state: of_kthread(self.map.task_state),
            node_entry: self.map.node_entry.and_then(task_offset),
            task_cpu: self.map.task_cpu.and_then(task_offset),
            leaves: self.map.leaves.iter().map(node).collect::<Result<_>>()?,
        })
    }
}
