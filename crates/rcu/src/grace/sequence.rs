// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods as numbers, shared by all threads that wait.
//!
//! `seq` is even when no grace period runs and odd while one does; each complete one adds 2 (the
//! kernel's `gp_seq` with one state bit). A [`GpSeq`] is the value `seq` will have when a grace
//! period that *began* after the cookie was taken has ended. So any number of requests made while
//! one grace period runs are served together by the next.
//!
//! A waiting thread that finds no leader becomes the leader, runs one grace period for all, and
//! wakes the others. The runtime needs no thread of its own for this.
//!
//! # Why a cookie is enough
//! Requester: unlink; fence; read `seq` = s. Leader: write `seq` odd; heavy barrier; look at the
//! readers. A grace period that the cookie counts on wrote its odd value after the requester's
//! read, so the requester's fence comes before the leader's heavy barrier in the order of fences,
//! and readers that begin after that barrier see the unlinking.
//!
//! A leader may give up (a deadline, or a fork in whose child it does not exist): `seq` goes back
//! to the even value before. Cookies taken in between then ask for one grace period more than they
//! need, and never for too few.

use super::engine::{Attempt, GraceEngine};
use super::stats::GraceStats;
use crate::platform::cancel::CancelDisabled;
use crate::platform::event::Event;
use crate::platform::lock::Lock;
use crate::platform::sync::{AtomicU64, Ordering, const_unless_loom, fence};
use std::time::Instant;

/// Names a grace period that has not ended yet when the cookie is taken. The public one names its
/// domain as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpSeq(pub(crate) u64);

pub(crate) struct Sequence {
    seq: AtomicU64,
    leader: Lock,
    /// A leader steps down.
    stepped_down: Event,
}

impl Sequence {
    /// Where the number is, for `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) const SEQUENCE: usize = std::mem::offset_of!(Sequence, seq);

    const_unless_loom! {
        pub(crate) fn new() -> Sequence {
            Sequence {
                seq: AtomicU64::new(0),
                leader: Lock::new(),
                stepped_down: Event::new()
            }
        }
    }

    /// The end of the next full grace period. Does not start one.
    pub(crate) fn cookie(&self) -> GpSeq {
        // Pairs with the heavy barrier of the leader: see the module's text.
        fence(Ordering::SeqCst);
        GpSeq((self.seq.load(Ordering::Relaxed) + 3) & !1)
    }

    /// Does a grace period run?
    #[cfg(not(loom))]
    pub(crate) fn running(&self) -> bool {
        self.seq.load(Ordering::Relaxed) & 1 != 0
    }

    /// Has it ended?
    pub(crate) fn done(&self, cookie: GpSeq) -> bool {
        // Acquires what the leader acquired from the readers.
        self.seq.load(Ordering::Acquire).wrapping_sub(cookie.0) as i64 >= 0
    }

    /// Waits until it has ended, leading grace periods where nobody else does. False if `deadline`
    /// came first.
    pub(crate) fn run_until(
        &self,
        cookie: GpSeq,
        attempt: &Attempt<'_>,
        engine: &dyn GraceEngine,
        stats: &GraceStats,
    ) -> bool {
        let _cancel = CancelDisabled::new();
        loop {
            let count = self.stepped_down.count();
            if self.done(cookie) {
                return true;
            }
            if self.leader.try_lock() {
                let done = self.done(cookie) || self.lead(attempt, engine, stats);
                self.leader.unlock();
                self.stepped_down.happen();
                if !done {
                    return false;
                }
            } else {
                let left = attempt.deadline.map(|d| d.saturating_duration_since(Instant::now()));
                if left.is_some_and(|l| l.is_zero()) {
                    return false;
                }
                self.stepped_down.sleep(count, left);
            }
        }
    }

    /// One grace period, under the leader's lock.
    fn lead(&self, attempt: &Attempt<'_>, engine: &dyn GraceEngine, stats: &GraceStats) -> bool {
        let before = self.seq.load(Ordering::Relaxed);
        debug_assert!(before & 1 == 0);
        let start = stats.start();
        self.seq.store(before + 1, Ordering::SeqCst);
        let done = engine.grace_period(attempt);
        // Release: pairs with `done`.
        self.seq.store(if done { before + 2 } else { before }, Ordering::Release);
        stats.end(start, done);
        done
    }

    /// In the child of a fork: there is no leader, whatever the memory says. A grace period that
    /// was running counts as never begun, since this thread may be one of the readers it waited
    /// for.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.leader.reset();
        self.seq.store(self.seq.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        self.stepped_down.after_fork();
    }
}
