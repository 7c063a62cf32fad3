// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Ltimer`: look on each tick, batch (FREENIX 2003, rcu-ltimer).
//!
//! A grace period begins on a tick, so that all requests of one tick share it, and readers are
//! looked at once per tick. It takes two ticks at least and costs little: right for large batches
//! that are in no hurry. An urgent request turns the rest of the grace period into `Poll`'s.

use super::{Attempt, GraceEngine};
use std::time::Duration;

pub(crate) struct Ltimer {
    pub(crate) tick: Duration,
}

impl Ltimer {
    /// Sleeps until the next tick, or until a request is urgent. All leaders of the process have
    /// the same ticks.
    fn next_tick(&self, attempt: &Attempt<'_>) {
        let tick = self.tick.as_nanos().max(1);
        let left = tick - crate::grace::stats::uptime().as_nanos() % tick;
        attempt.sleep(Duration::from_nanos(left.min(u64::MAX as u128) as u64));
    }
}

impl GraceEngine for Ltimer {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        self.next_tick(attempt);
        if !attempt.heavy_barrier() {
            return false;
        }
        let mut waiting = false;
        for record in attempt.registry.records() {
            waiting |= record.look();
        }
        if !waiting {
            return true;
        }
        let wait = attempt.wait();
        while waiting {
            if attempt.urgency.any() {
                return attempt.await_passed();
            }
            if attempt.expired() {
                return false;
            }
            self.next_tick(attempt);
            wait.slept();
            waiting = !attempt.registry.records().all(|r| r.passed());
        }
        true
    }
}
