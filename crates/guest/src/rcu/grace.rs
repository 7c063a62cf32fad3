// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's grace period as it looks from outside: plain data.

use crate::state::task::Task;
use std::time::Duration;

/// `rcu_state` at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GracePeriod {
    /// `gp_seq`: the low two bits are the phase (0: none in progress), the rest counts the grace
    /// periods that ended. Under load they run back to back, and only the count shows that one
    /// ended.
    pub seq: u64,
    /// When it started, guest jiffies.
    pub start_jiffies: Option<u64>,
    /// Guest jiffies now.
    pub jiffies: u64,
    /// How long it has lasted by the guest's clock, which stands still while the guest is paused or
    /// the vCPU that keeps its time is off its CPU. `None` if none is in progress or the guest's
    /// timer frequency is unknown.
    pub age: Option<Duration>,
    /// Phase of the grace-period kthread.
    pub state: Option<KthreadState>,
    /// Rounds of looking for quiescent states (`fqs` scans) since boot.
    pub force_qs_rounds: Option<u64>,
}

impl GracePeriod {
    /// Whether one is in progress.
    pub fn in_progress(&self) -> bool {
        self.seq & 3 != 0
    }

    /// Grace periods that have ended since boot, up to a constant.
    pub fn completed(&self) -> u64 {
        self.seq >> 2
    }
}

/// `rcu_state.gp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KthreadState {
    Idle,
    /// Waits for a reason to start (nobody needs a grace period).
    WaitGracePeriod,
    DoneGracePeriod,
    OnOff,
    Initializing,
    /// Waits for quiescent states.
    WaitForceQs,
    ForcingQs,
    CleaningUp,
    CleanedUp,
    Other(u16),
}

impl KthreadState {
    /// From the kernel's number (`kernel/rcu/tree.h`, the same since 5.7).
    pub fn new(value: u16) -> KthreadState {
        use KthreadState::*;
        match value {
            0 => Idle,
            1 => WaitGracePeriod,
            2 => DoneGracePeriod,
            3 => OnOff,
            4 => Initializing,
            5 => WaitForceQs,
            6 => ForcingQs,
            7 => CleaningUp,
            8 => CleanedUp,
            other => Other(other),
        }
    }
}

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

/// A CPU's `rcu_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcuData {
    /// The grace period that the CPU knows of.
    pub gp_seq: u64,
    /// The CPU knows of the grace period and still has to find a quiescent state of its own.
    pub core_needs_qs: Option<bool>,
    /// No quiescent state seen since the CPU learnt of the grace period.
    pub cpu_no_qs: Option<bool>,
    /// Scheduler ticks since the CPU learnt of the grace period.
    pub ticks_this_gp: Option<u32>,
    /// The grace-period kthread wants this CPU to hurry.
    pub urgent: Option<bool>,
    /// Callbacks waiting on this CPU.
    pub callbacks: Option<u64>,
}
