// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace-period engines: how a leader learns that every section that was running has ended.
//!
//! All engines do the same three things in the same order, and differ in the pace of the third:
//!
//! 1. a **heavy** barrier, so that each reader's word shows the sections that may hold the node, or
//!    the reader sees the unlinking;
//! 2. **look**: which readers are inside a section now?
//! 3. wait until each of them has **passed** out of it. Sections that began later do not matter.
//!
//! | engine | after | pace | cost to readers |
//! |---|---|---|---|
//! | `Restart`: [`Poll`](poll::Poll) with [`Kind::Restart`] | this project | restartable lookups are sent back to their start by step 1 itself; for plain sections as `Poll` | none |
//! | [`Poll`](poll::Poll) | rcu-poll of the FREENIX 2003 paper: ask at once, everywhere | at once, then shortly after, ever less often | none |
//! | [`Ltimer`](ltimer::Ltimer) | its rcu-ltimer: look on each tick, batch | once per tick | none |
//! | [`Sched`](sched::Sched) | its rcu-sched: a token goes from reader to reader | one reader at a time | none |
//!
//! The paper's algorithms ran in a kernel, where a quiescent state is a context switch that the
//! scheduler reports. In user space it is any moment outside a section, and the reader's word
//! already tells it, so the leader carries the token of `Sched` on the readers' behalf, and no
//! fast path has to look for it.

pub(crate) mod ltimer;
pub(crate) mod poll;
pub(crate) mod sched;

#[cfg(not(loom))]
use crate::grace::cpu_threads::Reached;
use crate::grace::heavy;
use crate::grace::urgency::Urgency;

use crate::grace::watch::{LeaderWait, Watch};
use crate::platform::Instant;
use crate::platform::barrier::Kind;
use crate::thread::registry::Registry;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An engine's input for one grace period.
pub(crate) struct Attempt<'a> {
    pub(crate) registry: &'a Registry,
    /// The heavy barrier of this domain.
    pub(crate) barrier: Kind,
    pub(crate) urgency: &'a Urgency,
    /// When to give up. `None`: never.
    pub(crate) deadline: Option<Instant>,
    pub(crate) watch: &'a Watch,
    /// Counts grace periods that visited CPUs.
    #[cfg(not(loom))]
    pub(crate) visits: &'a std::sync::atomic::AtomicU64,
}

/// A way to run a grace period.
pub(crate) trait GraceEngine: Send + Sync {
    /// Returns true once every section of the registry that was running at the call has ended;
    /// false if the deadline came first, and then nothing is promised. Called by one leader at a
    /// time.
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool;
}

/// A grace period for the caller alone, which need not be the leader: a heavy barrier, and a look
/// that finds no reader inside a plain section. False if it finds one: then nothing is promised.
///
/// Enough for what was unlinked before the call: a section that may have found it is seen to be
/// over, or was sent back to its start.
pub(crate) fn quick(barrier: Kind, registry: &Registry) -> bool {
    heavy::interrupt(barrier, registry);
    registry.records().all(|r| r.outside())
}

impl Attempt<'_> {
    fn expired(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// Sleeps for `time`, until a request is urgent, or until the deadline.
    fn sleep(&self, time: Duration) {
        let left = self.deadline.map(|d| d.saturating_duration_since(Instant::now()));
        self.urgency.sleep(left.map_or(time, |left| left.min(time)));
    }

    /// Step 1. False if the deadline came first.
    fn heavy_barrier(&self) -> bool {
        #[cfg(not(loom))]
        if self.barrier == Kind::Restart {
            let reached = heavy::restart_until(self.deadline);
            if reached == Reached::ByThreads {
                self.visits.fetch_add(1, Ordering::Relaxed);
            }
            return reached != Reached::Expired;
        }
        heavy::interrupt(self.barrier, self.registry);
        true
    }

    /// Step 3 begins.
    fn wait(&self) -> LeaderWait<'_> {
        LeaderWait::begin(self.watch, self.registry)
    }

    /// Steps 2 and 3 as `Poll` does them.
    fn poll_readers(&self) -> bool {
        let mut waiting = false;
        for record in self.registry.records() {
            waiting |= record.look();
        }
        !waiting || self.await_passed()
    }

    /// Step 3, at a quick pace.
    fn await_passed(&self) -> bool {
        let wait = self.wait();
        let mut pause = Pause::default();
        while !self.registry.records().all(|r| r.passed()) {
            if self.expired() {
                return false;
            }
            if pause.next() == Paused::Slept {
                wait.slept();
            }
        }
        true
    }
}

/// Ever longer pauses: a running reader leaves its section within nanoseconds, a preempted one may
/// need the CPU that the leader uses.
///
/// Sleeping, not `sched_yield`: a yield gives the rest of the slice to any thread that waits for
/// the CPU, reader or not, and returns a slice later. With one reader on an idle machine the median
/// is some 60 us longer for it; with other work on the machine, or more readers, the mean is
/// shorter.
#[derive(Default)]
struct Pause(u32);

/// How a pause was spent.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(loom, allow(dead_code))]
enum Paused {
    Spun,
    Slept,
}

impl Pause {
    #[cfg(not(loom))]
    fn next(&mut self) -> Paused {
        const SPINS: u32 = 64;
        const SHORTEST: Duration = Duration::from_micros(20);
        const LONGEST: Duration = Duration::from_millis(1);
        let n = self.0;
        self.0 = n.saturating_add(1);
        if n < SPINS {
            std::hint::spin_loop();
            return Paused::Spun;
        }
        crate::platform::sys::sleep((SHORTEST * (1 << (n - SPINS).min(6))).min(LONGEST));
        Paused::Slept
    }

    #[cfg(loom)]
    fn next(&mut self) -> Paused {
        loom::thread::yield_now();
        Paused::Spun
    }
}
