// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Poll`: ask at once, everywhere (FREENIX 2003, rcu-poll).
//!
//! The membarrier interrupts every CPU; then the leader reads the readers' words again and again.
//! This gives the shortest grace periods for plain sections, at the highest cost per grace period.
//!
//! The same steps as [`Restart`](super::restart::Restart) by construction: what differs is the
//! domain's heavy barrier, which restarts nothing here.

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
