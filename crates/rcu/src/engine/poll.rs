// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Poll`: ask at once, everywhere ([IPC], rcu-poll).
//!
//! The membarrier is the interrupt to every CPU; from then on the leader asks the readers' words again and again. The shortest
//! grace periods for plain sections and the highest cost per grace period.
//!
//! The same steps as [`Restart`](super::restart::Restart) by construction: what differs is the domain's heavy barrier, which restarts nothing here.

use super::{Attempt, Engine};

pub(crate) struct Poll;

impl Engine for Poll {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        if !attempt.heavy() {
            return false;
        }
        attempt.poll_readers()
    }
}
