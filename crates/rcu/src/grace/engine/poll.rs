// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Poll`: ask at once, everywhere (FREENIX 2003, rcu-poll). And `Restart`, which differs in the
//! domain's heavy barrier only.
//!
//! The membarrier interrupts every CPU; then the leader reads the readers' words again and again.
//! This gives the shortest grace periods for plain sections, at the highest cost per grace period.
//!
//! The heavy barrier of a `Restart` domain itself ends every restartable section. A lookup that
//! runs is interrupted by the membarrier and starts over. A preempted one starts over before its
//! next instruction in user mode. Neither shows in the readers' words, and the leader waits for
//! neither.

use super::{Attempt, GraceEngine};

pub(crate) struct Poll;

impl GraceEngine for Poll {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        if !attempt.heavy_barrier() {
            return false;
        }
        attempt.poll_readers()
    }
}
