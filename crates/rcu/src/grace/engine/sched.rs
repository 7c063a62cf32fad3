// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Sched`: a token passed at quiescent states (FREENIX 2003, rcu-sched).
//!
//! The token visits the readers one after the other, in registry order, and moves on when its
//! holder is outside any section or has been since the token arrived. Idle threads are passed at
//! once. At most one reader is watched at any time: the least work per grace period, and the
//! longest grace periods, since the delays of preempted readers add up.
//!
//! A single heavy barrier before the token starts is enough: a section that may hold the node was
//! shown in its word then, and is either still there when the token arrives, or over.

use super::{Attempt, GraceEngine};
use std::time::Duration;

pub(crate) struct Sched {
    /// How long the leader sleeps before it looks at the token's holder again.
    pub(crate) tick: Duration,
}

impl GraceEngine for Sched {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        if !attempt.heavy_barrier() {
            return false;
        }
        for holder in attempt.registry.records() {
            if !holder.look() {
                continue;
            }
            let wait = attempt.wait();
            let mut pause = super::Pause::default();
            while !holder.passed() {
                if attempt.expired() {
                    return false;
                }
                let paused = if attempt.urgency.any() {
                    pause.next()
                } else {
                    attempt.sleep(self.tick);
                    super::Paused::Slept
                };
                if paused == super::Paused::Slept {
                    wait.slept();
                }
            }
        }
        true
    }
}
