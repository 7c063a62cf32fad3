// SPDX-License-Identifier: MIT OR Apache-2.0
//! A heavy barrier that sleeps: a thread of ours on each CPU, for machines whose interrupts take
//! long.
//!
//! The membarrier interrupts other CPUs and spins until all have answered. A virtual CPU that the
//! hypervisor has preempted answers when it runs again, tens of milliseconds later. Meanwhile the
//! caller burns its time slice, so that the guest's scheduler lets it wait behind all readers. So
//! where the membarrier has been seen to spin ([`spin_detector`]) the leader of a grace period has
//! each CPU *visited*: it wakes one thread per CPU, bound to it, and sleeps until all have run.
//!
//! > **Invariant.** A CPU has been visited in a round when a thread of ours has executed an
//! > instruction on it after the round began. Whatever ran there before is then off its CPU, or
//! > was: a full fence; and a restartable section in it starts over before its next instruction.
//!
//! [`interrupt`](super::heavy::interrupt) with [`Kind::Restart`](crate::platform::barrier::Kind)
//! promises the same. A thread that was inside a section when the round began has lost its CPU
//! since, by the visit of that CPU at the latest. A thread that runs on a CPU after its visit was
//! switched to after the visiting thread had seen the round, and so sees the unlinking. A thread
//! that changes CPUs in between was switched away from the one and to the other.
//!
//! The membarrier's command for a single CPU, which interrupts nobody where no thread of the
//! process runs, goes to CPUs that have no thread of ours (beyond what the process might use when
//! it started, or switched off) and to a CPU that was not visited in time (a real-time thread has
//! it).

#[cfg(not(loom))]
mod spin_detector;
#[cfg(not(loom))]
mod threads;

use crate::platform::event::Event;
use crate::platform::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// How a heavy barrier was made.
#[cfg(not(loom))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// All CPUs that had a thread of ours were visited; there was one at least.
    ByThreads,
    /// By interrupts, some or all.
    ByInterrupts,
    /// Not at all: the deadline came first.
    Expired,
}

#[cfg(not(loom))]
pub(super) use threads::{cheaper, restart_sections};

/// Rounds of visits, and which CPU was visited in which. One leader at a time.
pub(crate) struct Rounds {
    /// A round begins. The count is its number.
    round: Event,
    /// A CPU was visited, or will not be.
    answer: Event,
    /// The round that each CPU was last visited in.
    visited: Box<[AtomicU32]>,
}

impl Rounds {
    pub(crate) fn new(cpus: usize) -> Rounds {
        Rounds {
            round: Event::new(),
            answer: Event::new(),
            visited: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The leader: begins a round. The per-CPU threads, and whatever runs after them, see what the
    /// leader did before.
    pub(crate) fn begin(&self) -> u32 {
        fence(Ordering::SeqCst);
        self.round.happen()
    }

    pub(crate) fn visited(&self, cpu: usize, round: u32) -> bool {
        // Acquire: what ran there before the visit is visible.
        self.visited.get(cpu).is_some_and(|v| v.load(Ordering::Acquire) == round)
    }

    /// The leader: sleeps until `enough`, which looks at [`visited`](Rounds::visited), or until
    /// `left` has nothing left. Tells whether it was enough.
    pub(crate) fn wait(
        &self,
        enough: impl Fn() -> bool,
        left: impl Fn() -> Option<Duration>,
    ) -> bool {
        loop {
            let answers = self.answer.count();
            if enough() {
                return true;
            }
            match left() {
                Some(left) if left.is_zero() => return false,
                left => self.answer.sleep(answers, left),
            }
        }
    }

    /// A per-CPU thread: the current round. Read *before* the thread looks where it runs.
    pub(crate) fn current(&self) -> u32 {
        self.round.count()
    }

    /// A per-CPU thread that has executed an instruction on the CPU since it read `round`.
    pub(crate) fn answer(&self, cpu: usize, round: u32) {
        // Release: pairs with `visited`.
        self.visited[cpu].store(round, Ordering::Release);
        self.nudge();
    }

    /// The leader looks again.
    pub(crate) fn nudge(&self) {
        self.answer.happen();
    }

    /// A per-CPU thread: sleeps until the round is another than that, at most `time`. May return
    /// early.
    pub(crate) fn sleep(&self, round: u32, time: Duration) {
        self.round.sleep(round, Some(time));
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    fn after_fork(&self) {
        self.round.after_fork();
        self.answer.after_fork();
    }
}
