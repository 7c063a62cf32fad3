// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a VM is attached to again.
//!
//! A guest chooses how long a search of its memory takes, whether it succeeds, and when it looks as
//! if it rebooted. So whatever takes long is followed by a rest, which grows with the number of VMs
//! that rest: all of them together take one part in [`REST`] of a CPU.

use std::time::{Duration, Instant};

const REST: u32 = 10;

/// A search that found a kernel in this time may be repeated without a rest:
/// [`again`](Attempts::again) keeps repetitions apart.
const CHEAP: Duration = Duration::from_secs(1);

/// A failed attempt is repeated after this, and after twice as long each time it fails again.
const RETRY: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A boot that lasted for so long may end without being held against the guest.
const STABLE: Duration = Duration::from_secs(60);
/// The wait after the second of several boots that did not last, doubled after each more, up to
/// [`RETRY_MAX`].
const REBOOT: Duration = Duration::from_secs(1);

/// The rest after so much time, with so many others that rest.
pub fn rest(took: Duration, others: usize) -> Duration {
    let all = u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1);
    took.saturating_mul(REST.saturating_mul(all))
}

/// Attempts to attach. One at a time is under way.
pub struct Attempts {
    wanted: Option<Instant>,
    running: bool,
    /// In a row.
    failures: u32,
    /// The wait after the next boot that did not last.
    next: Duration,
    /// None begins before.
    rests_until: Instant,
}

impl Attempts {
    /// The first one is wanted at `at`.
    pub fn new(at: Instant) -> Attempts {
        let wanted = Some(at);
        Attempts { wanted, running: false, failures: 0, next: Duration::ZERO, rests_until: at }
    }

    /// Since when an attempt is due.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let due = self.wanted.map(|at| at.max(self.rests_until));
        due.filter(|&at| at <= now && !self.running)
    }

    /// Whether one will be due within a second.
    pub fn soon(&self, now: Instant) -> bool {
        self.due(now + Duration::from_secs(1)).is_some()
    }

    /// Whether an attempt failed, and none succeeded since.
    pub fn repeats(&self) -> bool {
        self.failures > 0
    }

    pub fn rests(&self, now: Instant) -> bool {
        self.rests_until > now
    }

    /// Another one is wanted, also while one runs: what was attached to has changed, and had
    /// `lasted` so long. Returns when.
    pub fn again(&mut self, lasted: Duration, now: Instant) -> Instant {
        let wait = if lasted >= STABLE { Duration::ZERO } else { self.next };
        self.next = (wait * 2).clamp(REBOOT, RETRY_MAX);
        (self.wanted, self.failures) = (Some(now + wait), 0);
        now + wait
    }

    /// For as long as there is no room for the VM.
    pub fn put_off(&mut self, now: Instant) {
        self.wanted = Some(now + RETRY_MAX);
    }

    /// No attempt is wanted, for good or until another is.
    pub fn stop(&mut self) {
        self.wanted = None;
    }

    /// Begins an attempt, unless one runs or it is too early.
    pub fn begin(&mut self, now: Instant) -> bool {
        let may = !self.running && !self.rests(now);
        self.running |= may;
        may
    }

    /// The attempt ended, and had nothing to do. What is wanted stays.
    pub fn end(&mut self) {
        self.running = false;
    }

    /// The attempt succeeded, and took so much CPU time.
    pub fn succeeded(&mut self, took: Duration, others: usize, now: Instant) {
        (self.wanted, self.failures, self.running) = (None, 0, false);
        if took > CHEAP {
            self.rests_until = now + rest(took, others);
        }
    }

    pub fn failed(&mut self, took: Duration, others: usize, now: Instant) {
        let delay = RETRY.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures += 1;
        (self.wanted, self.running) = (Some(now + delay), false);
        self.rests_until = now + rest(took, others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_guest_that_reboots_all_the_time_is_searched_ever_more_rarely() {
        let (short, now) = (Duration::from_secs(2), Instant::now());
        let mut attempts = Attempts::new(now);
        let mut waits = |lasted, n: usize| -> Vec<u64> {
            (0..n).map(|_| (attempts.again(lasted, now) - now).as_secs()).collect()
        };
        assert_eq!(waits(short, 8), [0, 1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waits(STABLE, 2), [0, 0], "reboots that are far apart are seen at once");
        assert_eq!(waits(short, 2), [1, 2]);
    }

    /// CPU time that attempts for `guests` hostile guests take in an hour. `each` tells what
    /// becomes of one that took that long.
    fn an_hour(guests: usize, each: fn(&mut Attempts, Duration, usize, Instant)) -> Duration {
        let (start, took) = (Instant::now(), 10 * SECOND);
        let mut all: Vec<Attempts> = (0..guests).map(|_| Attempts::new(start)).collect();
        let mut spent = Duration::ZERO;
        for second in 0..3600 {
            let now = start + SECOND * second;
            for n in 0..guests {
                if all[n].due(now).is_none() || !all[n].begin(now) {
                    continue;
                }
                spent += took;
                let others = (0..guests).filter(|&o| o != n && all[o].rests(now)).count();
                each(&mut all[n], took, others, now + took);
            }
        }
        spent
    }

    #[test]
    fn three_hostile_guests_stay_under_one_budget() {
        let again = |attempts: &mut Attempts, took, others, now| {
            attempts.succeeded(took, others, now);
            attempts.again(STABLE, now);
        };
        for each in [Attempts::failed, again] {
            for guests in [1, 3, 30] {
                let first = 2 * guests as u32 * 10 * SECOND;
                let spent = an_hour(guests, each);
                let budget = 3600 * SECOND / REST;
                assert!(spent <= budget + first, "{guests} guests: {spent:?}");
                assert!(spent >= guests as u32 * 10 * SECOND);
            }
        }
    }

    #[test]
    fn a_guest_that_starts_is_tried_often() {
        let now = Instant::now();
        let mut attempts = Attempts::new(now);
        let mut waits = |took| {
            assert!(attempts.begin(now) || attempts.rests(now));
            attempts.failed(took, 0, now);
            let due = (0..400).find(|n| attempts.due(now + RETRY * *n).is_some()).unwrap();
            attempts.rests_until = now;
            due
        };
        let short = Duration::from_millis(5);
        assert_eq!([waits(short), waits(short), waits(short)], [1, 2, 4]);
        assert_eq!(waits(SECOND), 40, "ten seconds");
        assert!((0..9).all(|_| waits(short) <= 120), "30 seconds at most");
    }

    #[test]
    fn what_is_wanted_while_an_attempt_runs_stays() {
        let now = Instant::now();
        let mut attempts = Attempts::new(now);
        assert!(attempts.begin(now) && !attempts.begin(now) && attempts.due(now).is_none());
        attempts.again(STABLE, now);
        attempts.end();
        assert!(attempts.due(now).is_some() && attempts.soon(now) && !attempts.repeats());
        attempts.succeeded(Duration::ZERO, 0, now);
        assert!(attempts.due(now).is_none());
    }
}
