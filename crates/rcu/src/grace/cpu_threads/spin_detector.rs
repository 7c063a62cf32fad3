// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the membarrier spins on this machine, now.
//!
//! Wall-clock time does not tell: the caller may have been preempted in the call, and was not
//! spinning then. Its CPU time tells (except for steal time that the guest does not see), but
//! reading it is a system call. So a call that took long by the clock makes the detector measure
//! the next ones in CPU time. When [`ROW`] more of those were long than short,
//! [`SpinDetector::visits`] says yes for some time. Then one call is tried again; each time it
//! still spins, that time doubles. Visits that take longer than the call did, several times in a
//! row, end it at once.

use crate::platform::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A longer call spun. An interrupt and its answer take some microseconds, tens of them where the
/// hypervisor delivers interrupts.
const LONG: Duration = Duration::from_micros(500);
const ROW: u32 = 3;
/// Rounds of visits in a row that were slower than the call.
const WORSE: u32 = 4;
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(8);

/// The detector of the process.
pub(crate) static DETECTOR: SpinDetector = SpinDetector::new();

/// Leaders of several domains may note calls at the same time. A lost step only delays the
/// detection by one call.
pub(crate) struct SpinDetector {
    /// CPU time is measured.
    suspect: AtomicBool,
    /// Calls that spun, less those that did not.
    spun: AtomicU32,
    /// Rounds of visits in a row that took longer than `call`.
    worse: AtomicU32,
    /// How long the last call that spun took by the clock. This and the two below in nanoseconds.
    call: AtomicU64,
    /// Visits are cheaper until then.
    until: AtomicU64,
    /// For how long the next visits will be cheaper.
    span: AtomicU64,
}

impl SpinDetector {
    pub(crate) const fn new() -> SpinDetector {
        SpinDetector {
            suspect: AtomicBool::new(false),
            spun: AtomicU32::new(0),
            worse: AtomicU32::new(0),
            call: AtomicU64::new(0),
            until: AtomicU64::new(0),
            span: AtomicU64::new(nanoseconds(FIRST)),
        }
    }

    /// Whether to visit: as `forced` says, else whether visits are cheaper at `now` (see [`now`]).
    pub(crate) fn visits(&self, forced: Option<bool>, now: u64) -> bool {
        forced.unwrap_or_else(|| now < self.until.load(Ordering::Relaxed))
    }

    /// Makes a call, and finds out whether it spins.
    pub(crate) fn measure(&self, membarrier: impl FnOnce()) {
        let suspect = self.suspect.load(Ordering::Relaxed);
        let cpu = suspect.then(sys::own_cpu_time);
        let start = sys::monotonic();
        membarrier();
        let call = sys::monotonic().saturating_sub(start);
        match cpu {
            Some(cpu) => self.note_call(sys::own_cpu_time().saturating_sub(cpu), call, now()),
            None if call > LONG => self.suspect.store(true, Ordering::Relaxed),
            None => {}
        }
    }

    /// Notes a call: the CPU time that it took from the caller, and its duration.
    fn note_call(&self, cpu: Duration, call: Duration, now: u64) {
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
        // Next time, one more call that spins is enough.
        self.spun.store(ROW - 1, Ordering::Relaxed);
        self.worse.store(0, Ordering::Relaxed);
        let span = self.span.load(Ordering::Relaxed);
        self.span.store((span * 2).min(nanoseconds(LAST)), Ordering::Relaxed);
        self.until.store(now + span, Ordering::Relaxed);
    }

    /// Notes the duration of a round of visits.
    pub(crate) fn note_round(&self, time: Duration) {
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

    fn spins(detector: &SpinDetector, times: u32, now: u64) {
        (0..times).for_each(|_| detector.note_call(SPIN, SPIN, now));
    }

    #[test]
    fn calls_that_spin_lead_to_visits_for_ever_longer() {
        let detector = SpinDetector::new();
        let mut now = 1;
        spins(&detector, ROW - 1, now);
        assert!(!detector.visits(None, now));
        spins(&detector, 1, now);
        let mut last = 0;
        for _ in 0..10 {
            assert!(detector.visits(None, now));
            let until = detector.until.load(Ordering::Relaxed);
            assert!(!detector.visits(None, until));
            assert!(until - now >= last && until - now <= nanoseconds(LAST));
            (last, now) = (until - now, until);
            // The one that is tried.
            spins(&detector, 1, now);
        }
        assert_eq!(last, nanoseconds(LAST));
    }

    #[test]
    fn a_caller_that_lost_its_cpu_did_not_spin() {
        let detector = SpinDetector::new();
        for _ in 0..100 {
            detector.note_call(SHORT, SPIN, 1);
        }
        assert!(!detector.visits(None, 1));
    }

    #[test]
    fn a_call_that_was_lucky_takes_one_back() {
        let detector = SpinDetector::new();
        for _ in 0..2 * ROW {
            spins(&detector, 2, 1);
            detector.note_call(SHORT, SHORT, 1);
        }
        assert!(detector.visits(None, 1), "two of three spin");
        let detector = SpinDetector::new();
        for _ in 0..100 {
            spins(&detector, 1, 1);
            (0..2).for_each(|_| detector.note_call(SHORT, SHORT, 1));
        }
        assert!(!detector.visits(None, 1), "one of three spins");
    }

    #[test]
    fn visits_that_are_no_better_end() {
        let detector = SpinDetector::new();
        spins(&detector, ROW, 1);
        (0..WORSE - 1).for_each(|_| detector.note_round(SPIN * 2));
        detector.note_round(SPIN / 2);
        assert!(detector.visits(None, 1));
        (0..WORSE).for_each(|_| detector.note_round(SPIN * 2));
        assert!(!detector.visits(None, 1));
        spins(&detector, ROW - 1, 1);
        assert!(!detector.visits(None, 1), "from the start");
    }

    #[test]
    fn a_forced_choice_ignores_the_calls() {
        let detector = SpinDetector::new();
        spins(&detector, 2 * ROW, 1);
        assert!(!detector.visits(Some(false), 1));
        assert!(detector.visits(Some(true), u64::MAX));
    }

    #[test]
    fn a_call_that_takes_cpu_time_is_seen_to() {
        let detector = SpinDetector::new();
        let spin = || {
            let start = sys::own_cpu_time();
            while sys::own_cpu_time() - start < 2 * LONG {}
        };
        // Whether visits were cheaper at any time: now they may no longer be.
        let visits = |detector: &SpinDetector| detector.until.load(Ordering::Relaxed) != 0;
        (0..=ROW).for_each(|_| detector.measure(spin));
        assert!(visits(&detector));
        let detector = SpinDetector::new();
        (0..=ROW).for_each(|_| detector.measure(|| sys::sleep(2 * LONG)));
        assert!(!visits(&detector));
    }
}
