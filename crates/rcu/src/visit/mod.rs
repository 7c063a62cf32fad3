// SPDX-License-Identifier: MIT OR Apache-2.0
//! A heavy barrier that sleeps: a thread of ours on each CPU, for machines whose interrupts take long.
//!
//! The membarrier interrupts other CPUs and spins until all have answered. A virtual CPU that the hypervisor has preempted answers when it runs
//! again, tens of milliseconds later; meanwhile the caller burns its time slice, for which the guest's scheduler lets it wait behind all
//! readers. So where the membarrier has been seen to spin ([`judge`]) the leader of a grace period *visits*: it wakes one thread per CPU, bound to it,
//! and sleeps until all have run.
//!
//! > **Invariant.** A CPU has been visited in a round when a thread of ours has executed an instruction on it after the round began. Whatever ran there
//! > before is then off its CPU, or was: a full fence; and a restartable section in it starts over before its next instruction.
//!
//! That is what [`heavy`](crate::barrier::heavy) with [`Kind::Restart`](crate::barrier::Kind) promises: a thread that was inside a section when the
//! round began has lost its CPU since, by the visit of that CPU at the latest; one that runs on a CPU after its visit was switched to after the
//! visitor had seen the round, and so sees the unlinking. One that changes CPUs in between was switched from the one and to the other.
//!
//! CPUs that have no visitor (beyond what the process might use when it started, or switched off) and one that was not visited in time (a
//! real-time thread has it) get the membarrier's command for a single CPU, which interrupts nobody where no thread of the process runs.

#[cfg(not(loom))]
mod judge;
#[cfg(not(loom))]
mod threads;

use crate::sync::{AtomicU32, Ordering, fence, wait, wake_all};
use std::time::Duration;

/// How a heavy barrier was made.
#[cfg(not(loom))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    /// All CPUs were visited that had a visitor; there was one at least.
    Visited,
    /// By interrupts, some or all.
    Interrupted,
    /// Not at all: the deadline came first.
    Expired,
}

/// The heavy barrier of [`Kind::Restart`](crate::barrier::Kind), by interrupts or by visits. `deadline` ends visits only.
#[cfg(not(loom))]
pub(crate) fn heavy(deadline: Option<std::time::Instant>) -> Reached {
    threads::heavy(&judge::JUDGE, deadline)
}

/// Whether visits are cheaper now.
#[cfg(not(loom))]
pub(crate) fn preferred() -> bool {
    threads::preferred(&judge::JUDGE)
}

/// At start-up. `one_cpu`: the membarrier has a form for one CPU. The others: `REPRIEVE_BARRIER` is `visit`, or `interrupt`.
#[cfg(not(loom))]
pub(crate) fn init(one_cpu: bool, visit: bool, interrupt: bool) {
    threads::init(one_cpu);
    judge::JUDGE.force(visit, interrupt);
}

#[cfg(not(loom))]
pub(crate) fn after_fork() {
    threads::after_fork();
    judge::JUDGE.after_fork();
}

/// Rounds of visits, and who has done which. One leader at a time.
pub(crate) struct Rounds {
    round: AtomicU32,
    /// Grows with each answer.
    answers: AtomicU32,
    /// The round that each CPU was last visited in.
    visited: Box<[AtomicU32]>,
}

impl Rounds {
    pub(crate) fn new(cpus: usize) -> Rounds {
        Rounds {
            round: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            visited: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The leader: what it did before, visitors and those who run after them see.
    pub(crate) fn begin(&self) -> u32 {
        fence(Ordering::SeqCst);
        let round = self.round.load(Ordering::Relaxed).wrapping_add(1);
        self.round.store(round, Ordering::SeqCst);
        wake_all(&self.round);
        round
    }

    pub(crate) fn visited(&self, cpu: usize, round: u32) -> bool {
        // Acquire: what ran there before the visit is visible.
        self.visited.get(cpu).is_some_and(|v| v.load(Ordering::Acquire) == round)
    }

    /// The leader: sleeps until `enough`, which looks at [`visited`](Rounds::visited), or until `left` has nothing left.
    pub(crate) fn wait(
        &self,
        enough: impl Fn() -> bool,
        left: impl Fn() -> Option<Duration>,
    ) -> bool {
        loop {
            let answers = self.answers.load(Ordering::SeqCst);
            if enough() {
                return true;
            }
            match left() {
                Some(left) if left.is_zero() => return false,
                left => wait(&self.answers, answers, left),
            }
        }
    }

    /// A visitor: the current round. Read *before* it looks where it runs.
    pub(crate) fn current(&self) -> u32 {
        self.round.load(Ordering::SeqCst)
    }

    /// A visitor that has executed an instruction on the CPU since it read `round`.
    pub(crate) fn answer(&self, cpu: usize, round: u32) {
        // Release: pairs with `visited`.
        self.visited[cpu].store(round, Ordering::Release);
        self.nudge();
    }

    /// The leader looks again.
    pub(crate) fn nudge(&self) {
        self.answers.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.answers);
    }

    /// A visitor: sleeps until there is another round than that, at most `time`. May return early.
    pub(crate) fn sleep(&self, round: u32, time: Duration) {
        wait(&self.round, round, Some(time));
    }
}
