// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods as numbers, shared by everyone who waits.
//!
//! `seq` is even when no grace period runs and odd while one does; each complete one adds 2 (the kernel's `gp_seq` with one
//! state bit). A [`Cookie`] is the value `seq` will have when a grace period that *began* after the cookie was taken has
//! ended. So any number of requests made while one grace period runs are served together by the next.
//!
//! Whoever waits and finds no leader becomes the leader, runs one grace period for all, and wakes the rest. No thread of our own is needed.
//!
//! # Why a cookie is enough
//! Requester: unlink; fence; read `seq` = s. Leader: write `seq` odd; heavy barrier; look at the readers. A grace period that
//! the cookie counts on wrote its odd value after the requester's read, so the requester's fence comes before the leader's heavy
//! barrier in the order of fences, and readers that begin after that barrier see the unlinking.
//!
//! A leader may give up (a deadline; or it was left behind by a fork): `seq` goes back to the even value it came from. Cookies taken in between then ask
//! for one grace period more than they need, and none for fewer.

use crate::engine::{Attempt, Engine};
use crate::stats::Grace as Stats;
use crate::sync::{
    AtomicU32, AtomicU64, Lock, Ordering, const_unless_loom, decrement, fence, wait, wake_all,
};
use std::time::{Duration, Instant};

/// Names a grace period that has not ended yet when the cookie is taken. The public one names its domain as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie(pub(crate) u64);

pub(crate) struct Grace {
    seq: AtomicU64,
    leader: Lock,
    /// Advances when a leader steps down.
    event: AtomicU32,
    sleepers: AtomicU32,
    pub(crate) urgency: Urgency,
}

/// Requests that want the current grace periods to be quick. Engines that take their time look here.
pub(crate) struct Urgency {
    requests: AtomicU32,
    /// Too much garbage waits.
    pressed: AtomicU32,
    event: AtomicU32,
}

impl Urgency {
    const_unless_loom! {
        pub(crate) fn new() -> Urgency {
            Urgency { requests: AtomicU32::new(0), pressed: AtomicU32::new(0), event: AtomicU32::new(0) }
        }
    }

    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.event.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.event);
    }

    pub(crate) fn end(&self) {
        decrement(&self.requests);
    }

    pub(crate) fn any(&self) -> bool {
        self.requests.load(Ordering::SeqCst) != 0 || self.pressed.load(Ordering::Relaxed) != 0
    }

    /// In a hurry from now on, until [`Urgency::calm`].
    #[cfg(not(loom))]
    pub(crate) fn press(&self) {
        if self.pressed.load(Ordering::Relaxed) == 0 && self.pressed.swap(1, Ordering::SeqCst) == 0
        {
            self.event.fetch_add(1, Ordering::SeqCst);
            wake_all(&self.event);
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn calm(&self) {
        if self.pressed.load(Ordering::Relaxed) != 0 {
            self.pressed.store(0, Ordering::Relaxed);
        }
    }

    /// Sleeps for `time` unless somebody is in a hurry or comes to be.
    pub(crate) fn sleep(&self, time: Duration) {
        let event = self.event.load(Ordering::SeqCst);
        if !self.any() {
            wait(&self.event, event, Some(time));
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.pressed.store(0, Ordering::Relaxed);
    }
}

impl Grace {
    /// Where the number is, for `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) const SEQUENCE: usize = std::mem::offset_of!(Grace, seq);

    const_unless_loom! {
        pub(crate) fn new() -> Grace {
            Grace {
                seq: AtomicU64::new(0),
                leader: Lock::new(),
                event: AtomicU32::new(0),
                sleepers: AtomicU32::new(0),
                urgency: Urgency::new()
            }
        }
    }

    /// The end of the next full grace period. Does not start one.
    pub(crate) fn cookie(&self) -> Cookie {
        // Pairs with the heavy barrier of the leader: see the module's text.
        fence(Ordering::SeqCst);
        Cookie((self.seq.load(Ordering::Relaxed) + 3) & !1)
    }

    /// Does a grace period run?
    #[cfg(not(loom))]
    pub(crate) fn running(&self) -> bool {
        self.seq.load(Ordering::Relaxed) & 1 != 0
    }

    /// Has it ended?
    pub(crate) fn done(&self, cookie: Cookie) -> bool {
        // Acquires what the leader acquired from the readers.
        self.seq.load(Ordering::Acquire).wrapping_sub(cookie.0) as i64 >= 0
    }

    /// Waits until it has ended, leading grace periods where nobody else does. False if `deadline` came first.
    pub(crate) fn run_until(
        &self,
        cookie: Cookie,
        attempt: &Attempt<'_>,
        engine: &dyn Engine,
        stats: &Stats,
    ) -> bool {
        loop {
            let event = self.event.load(Ordering::Acquire);
            if self.done(cookie) {
                return true;
            }
            if self.leader.try_lock() {
                let done = self.done(cookie) || self.lead(attempt, engine, stats);
                self.leader.unlock();
                self.event.fetch_add(1, Ordering::SeqCst);
                if self.sleepers.load(Ordering::SeqCst) != 0 {
                    wake_all(&self.event);
                }
                if !done {
                    return false;
                }
            } else {
                let left = attempt.deadline.map(|d| d.saturating_duration_since(Instant::now()));
                if left.is_some_and(|l| l.is_zero()) {
                    return false;
                }
                // Pairs with the leader's: either it sees the sleeper or the kernel sees the new event.
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                wait(&self.event, event, left);
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// One grace period, under the leader's lock.
    fn lead(&self, attempt: &Attempt<'_>, engine: &dyn Engine, stats: &Stats) -> bool {
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

    /// In the child of a fork: there is no leader, whatever the memory says. A grace period that was running counts as
    /// never begun, since this thread may be one of the readers it waited for.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.leader.reset();
        self.seq.store(self.seq.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        self.urgency.reset();
    }
}
