// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cap on waiting callbacks, and what a registration does when it is exceeded.

use super::queue::{Step, Who};
use crate::domain::core::Core;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most that may wait in a domain before its registering threads help. `u64::MAX` is no limit. What waits for
/// [`Protected`](crate::Protected) guards only does not count: nobody but their owners can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Bytes announced by the registrations.
    pub bytes: u64,
    /// Callbacks.
    pub callbacks: u64,
}

impl Cap {
    /// Nothing is limited.
    pub const NONE: Cap = Cap { bytes: u64::MAX, callbacks: u64::MAX };
}

impl Default for Cap {
    /// 1 MiB, 16,384 callbacks: beyond them waiting costs more cache than it saves work.
    fn default() -> Cap {
        Cap { bytes: 1 << 20, callbacks: 1 << 14 }
    }
}

/// Longest time one registration spends on helping or waiting.
const LONGEST: Duration = Duration::from_millis(20);

/// Registers' duty when the cap is exceeded. Returns below the cap, or after [`LONGEST`].
#[cold]
#[inline(never)]
pub(crate) fn relieve(core: &Core, index: usize) {
    core.callbacks.over_cap.fetch_add(1, Ordering::Relaxed);
    core.grace.urgency.begin();
    core.queues.iter().filter(|q| q.load().callbacks() != 0).for_each(|q| q.wake());
    if !core.in_section() && !crate::thread::in_callback() {
        let deadline = Instant::now() + LONGEST;
        let mut helped = false;
        while core.over_cap() && Instant::now() < deadline {
            match core.queues[index].step(core, Who::Helper(deadline)) {
                Step::Progress => helped = true,
                // Others are at it, or what is left is not ours to run: wait for them.
                Step::Idle | Step::Held | Step::Stuck => {
                    core.await_progress(Duration::from_millis(1))
                }
            }
        }
        if helped {
            core.callbacks.helped.fetch_add(1, Ordering::Relaxed);
        }
    }
    core.grace.urgency.end();
}
