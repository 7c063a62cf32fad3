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
use grace::{BlockedReader, Model, Owing};
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
    pub(crate) tasks: &'a TaskOffsets,
}

impl Rcu<'_> {
    /// `rcu_state.gp_seq`.
    fn seq(&self) -> Result<u64> {
        self.kernel.memory.u64_physical(self.map.gp_seq)
    }

    /// How long the grace period in progress has lasted by the guest's clock, which stands still
    /// while the guest is paused or the vCPU that keeps its time is off its CPU. `None` if none is
    /// in progress or the guest's timer frequency is unknown.
    pub fn age(&self) -> Result<Option<Duration>> {
        let memory = &self.kernel.memory;
        let (Some(at), Some(hz)) = (self.map.gp_start, self.clock.hz) else { return Ok(None) };
        for _ in 0..=RETRIES {
            let seq = self.seq()?;
            let (start, now) = (memory.u64(at)?, self.clock.jiffies(memory)?);
            if self.seq()? == seq {
                // The two clocks are read one after the other.
                let age = Duration::from_secs(now.saturating_sub(start)) / hz;
                return Ok(Some(age).filter(|_| seq & 3 != 0));
            }
        }
        Ok(None)
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
