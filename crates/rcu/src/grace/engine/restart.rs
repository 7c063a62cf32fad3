// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Restart`: the heavy barrier itself ends every restartable section.
//!
//! A restartable lookup that runs is interrupted by the membarrier and starts over; one that is
//! preempted starts over before its next instruction in user mode. Neither shows in the readers'
//! words, and the leader waits for neither: preemption does not matter. It waits for plain sections
//! only, as `Poll` does.

use super::{Attempt, GraceEngine};

pub(crate) struct Restart;

impl GraceEngine for Restart {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        if !attempt.heavy_barrier() {
            return false;
        }
        attempt.poll_readers()
    }
}
