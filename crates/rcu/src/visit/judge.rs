// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the membarrier spins on this machine, now.
//!
//! Wall-clock time does not tell: the caller may have lost its CPU in the call, and was not spinning then. Its CPU time does (but for what a hypervisor took away from
//! it unseen), and asking for it is a system call of its own. So a call that took long by the clock makes the next ones be measured in CPU time; when of those
//! [`ROW`] more were long than short, [`Judge::visits`] says yes for a while. Then one call is tried again; each time it still spins, the while is
//! twice as long. Visits that take longer than the call did, several times in a row, end the while at once.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// An interrupt and its answer take some microseconds; with a hypervisor that has to help, tens.
const LONG: Duration = Duration::from_micros(500);
const ROW: u32 = 3;
/// Visits in a row that were no better.
const WORSE: u32 = 4;
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(8);

/// As far as `REPRIEVE_BARRIER` does not say.
const FREE: u32 = 0;
const VISIT: u32 = 1;
const INTERRUPT: u32 = 2;

/// The process's.
pub(crate) static JUDGE: Judge = Judge::new();

/// Leaders of several domains may judge at a time. That one's step may get lost does not matter.
pub(crate) struct Judge {
    forced: AtomicU32,
    /// CPU time is measured.
    suspect: AtomicBool,
    /// Calls that spun, less those that did not.
    spun: AtomicU32,
    /// Visits in a row that took longer than `call`.
    worse: AtomicU32,
    /// How long the last call took that spun, by the clock, in nanoseconds; and the three below.
    call: AtomicU64,
    /// Visits are cheaper until then.
    until: AtomicU64,
    /// How long the next while is.
    span: AtomicU64,
}

impl Judge {
    pub(crate) const fn new() -> Judge {
        Judge {
            forced: AtomicU32::new(FREE),
            suspect: AtomicBool::new(false),
            spun: AtomicU32::new(0),
            worse: AtomicU32::new(0),
            call: AtomicU64::new(0),
            until: AtomicU64::new(0),
            span: AtomicU64::new(nanoseconds(FIRST)),
        }
    }

    /// `REPRIEVE_BARRIER=visit` or `=interrupt`.
    pub(crate) fn force(&self, visit: bool, interrupt: bool) {
        let forced = if visit {
            VISIT
        } else if interrupt {
            INTERRUPT
        } else {
            FREE
        };
        self.forced.store(forced, Ordering::Relaxed);
    }

    /// Whether to visit. `now` as [`now`] has it.
    pub(crate) fn visits(&self, now: u64) -> bool {
        match self.forced.load(Ordering::Relaxed) {
            FREE => now < self.until.load(Ordering::Relaxed),
            forced => forced == VISIT,
        }
    }

    /// Makes a call, and sees whether it spins.
    pub(crate) fn watch(&self, membarrier: impl FnOnce()) {
        let suspect = self.suspect.load(Ordering::Relaxed);
        let cpu = suspect.then(sys::own_cpu_time);
        let start = sys::monotonic();
        membarrier();
        let call = sys::monotonic().saturating_sub(start);
        match cpu {
            Some(cpu) => self.judge(sys::own_cpu_time().saturating_sub(cpu), call, now()),
            None if call > LONG => self.suspect.store(true, Ordering::Relaxed),
            None => {}
        }
    }

    /// A call took so much of the caller's CPU time, and so long.
    fn judge(&self, cpu: Duration, call: Duration, now: u64) {
        let spun = self.spun.load(Ordering::Relaxed);
        if cpu <= LONG {
            self.spun.store(spun.saturating_sub(1), Ordering::Relaxed);
            if spun <= 1 {
                self.suspect.store(false, Ordering::Relaxed);
                self.span.store(nanoseconds(FIRST), Ordering::Relaxed);
            }
            return;
        }
        self.call.store(nanoseconds(call), Ordering::Relaxed);
        if spun + 1 < ROW {
            self.spun.store(spun + 1, Ordering::Relaxed);
            return;
        }
        // One more that spins will do next time.
        self.spun.store(ROW - 1, Ordering::Relaxed);
        self.worse.store(0, Ordering::Relaxed);
        let span = self.span.load(Ordering::Relaxed);
        self.span.store((span * 2).min(nanoseconds(LAST)), Ordering::Relaxed);
        self.until.store(now + span, Ordering::Relaxed);
    }

    /// A round of visits took so long.
    pub(crate) fn visited(&self, time: Duration) {
        if nanoseconds(time) <= self.call.load(Ordering::Relaxed) {
            self.worse.store(0, Ordering::Relaxed);
        } else if self.worse.fetch_add(1, Ordering::Relaxed) + 1 >= WORSE {
            self.spun.store(0, Ordering::Relaxed);
            self.span.store(nanoseconds(FIRST), Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
    }

    /// In the child of a fork, whose clock may be another.
    pub(crate) fn after_fork(&self) {
        self.until.store(0, Ordering::Relaxed);
    }
}

const fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    nanoseconds(sys::monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);
    const SPIN: Duration = Duration::from_millis(20);

    fn spins(judge: &Judge, times: u32, now: u64) {
        (0..times).for_each(|_| judge.judge(SPIN, SPIN, now));
    }

    #[test]
    fn calls_that_spin_lead_to_visits_for_ever_longer() {
        let judge = Judge::new();
        let mut now = 1;
        spins(&judge, ROW - 1, now);
        assert!(!judge.visits(now));
        spins(&judge, 1, now);
        let mut last = 0;
        for _ in 0..10 {
            assert!(judge.visits(now));
            let until = judge.until.load(Ordering::Relaxed);
            assert!(!judge.visits(until));
            assert!(until - now >= last && until - now <= nanoseconds(LAST));
            (last, now) = (until - now, until);
            // The one that is tried.
            spins(&judge, 1, now);
        }
        assert_eq!(last, nanoseconds(LAST));
    }

    #[test]
    fn a_caller_that_lost_its_cpu_did_not_spin() {
        let judge = Judge::new();
        for _ in 0..100 {
            judge.judge(SHORT, SPIN, 1);
        }
        assert!(!judge.visits(1));
    }

    #[test]
    fn a_call_that_was_lucky_takes_one_back() {
        let judge = Judge::new();
        for _ in 0..2 * ROW {
            spins(&judge, 2, 1);
            judge.judge(SHORT, SHORT, 1);
        }
        assert!(judge.visits(1), "two of three spin");
        let judge = Judge::new();
        for _ in 0..100 {
            spins(&judge, 1, 1);
            (0..2).for_each(|_| judge.judge(SHORT, SHORT, 1));
        }
        assert!(!judge.visits(1), "one of three spins");
    }

    #[test]
    fn visits_that_are_no_better_end() {
        let judge = Judge::new();
        spins(&judge, ROW, 1);
        (0..WORSE - 1).for_each(|_| judge.visited(SPIN * 2));
        judge.visited(SPIN / 2);
        assert!(judge.visits(1));
        (0..WORSE).for_each(|_| judge.visited(SPIN * 2));
        assert!(!judge.visits(1));
        spins(&judge, ROW - 1, 1);
        assert!(!judge.visits(1), "from the start");
    }

    #[test]
    fn what_is_forced_is_not_judged() {
        let judge = Judge::new();
        judge.force(false, true);
        spins(&judge, 2 * ROW, 1);
        assert!(!judge.visits(1));
        judge.force(true, false);
        assert!(judge.visits(u64::MAX));
    }

    #[test]
    fn a_call_that_takes_cpu_time_is_seen_to() {
        let judge = Judge::new();
        let spin = || {
            let start = sys::own_cpu_time();
            while sys::own_cpu_time() - start < 2 * LONG {}
        };
        (0..=ROW).for_each(|_| judge.watch(spin));
        assert!(judge.visits(now()));
        let judge = Judge::new();
        (0..=ROW).for_each(|_| judge.watch(|| sys::sleep(2 * LONG)));
        assert!(!judge.visits(now()));
    }
}
