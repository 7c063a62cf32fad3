// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Restart`: the heavy barrier itself ends every restartable section.
//!
//! A restartable lookup that runs is interrupted by the membarrier and starts over; one that is off its CPU starts over before its next
//! instruction in user mode. Neither is in the registry's words, and neither is waited for: preemption does
//! not matter. Only plain sections, if there are any, are waited for, as `Poll` does.

use super::{Attempt, Engine};

pub(crate) struct Restart;

impl Engine for Restart {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        if !attempt.heavy() {
            return false;
        }
        attempt.poll_readers()
    }
}
