// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's grace period as it looks from outside: plain data.

use crate::state::task::Task;

/// The CPUs and tasks that keep the grace period from ending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owing {
    /// `gp_seq` while this was read.
    pub seq: u64,
    /// CPUs that have not passed a quiescent state yet, ascending.
    pub cpus: Vec<u32>,
    /// Tasks that were preempted inside a reader that the grace period waits for. They owe it
    /// wherever they are.
    pub blocked: Vec<BlockedReader>,
    /// The grace period changed while this was read, several times in a row: CPUs of two of them
    /// may be mixed.
    pub torn: bool,
}

/// A task preempted inside a read-side section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedReader {
    pub task: Task,
    /// The CPU it ran on, if the kernel says.
    pub cpu: Option<u32>,
}

/// The parts of preemption and readers that the guest's kernel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// `CONFIG_PREEMPT_RCU`: readers are counted per task. Without it they leave no trace: guest
    /// kernel mode is a possible reader.
    pub preemptible_rcu: bool,
    /// `CONFIG_PREEMPT_COUNT`: spinlocks and disabled preemption show in `preempt_count`. Without
    /// it only interrupts do.
    pub counts_preemption: bool,
    pub preemption: Preemption,
}

/// The preemption model in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Preemption {
    /// PREEMPT_RT.
    RealTime,
    None,
    Voluntary,
    Full,
    Lazy,
    Unknown,
}
