// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests for quick grace periods. Engines that wait for ticks look here.

use crate::platform::event::Event;
use crate::platform::sync::{AtomicU32, Ordering, const_unless_loom};
use std::time::Duration;

/// Requests for quick grace periods in one domain.
pub(crate) struct Urgency {
    requests: AtomicU32,
    /// Too much garbage waits.
    pressed: AtomicU32,
    /// Happens when a request begins.
    hurry: Event,
}

impl Urgency {
    const_unless_loom! {
        pub(crate) fn new() -> Urgency {
            Urgency { requests: AtomicU32::new(0), pressed: AtomicU32::new(0), hurry: Event::new() }
        }
    }

    pub(crate) fn begin(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.hurry.happen();
    }

    pub(crate) fn end(&self) {
        // The number may have been set to 0 meanwhile, in the child of a fork.
        let less = |requests: u32| requests.checked_sub(1);
        let _ = self.requests.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    pub(crate) fn any(&self) -> bool {
        self.requests.load(Ordering::SeqCst) != 0 || self.pressed.load(Ordering::Relaxed) != 0
    }

    /// A request that lasts until [`Urgency::calm`]. Any number of times.
    #[cfg(not(loom))]
    pub(crate) fn press(&self) {
        if self.pressed.load(Ordering::Relaxed) == 0 && self.pressed.swap(1, Ordering::SeqCst) == 0
        {
            self.hurry.happen();
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn calm(&self) {
        if self.pressed.load(Ordering::Relaxed) != 0 {
            self.pressed.store(0, Ordering::Relaxed);
        }
    }

    /// Sleeps for `time`, or until there is a request.
    pub(crate) fn sleep(&self, time: Duration) {
        let count = self.hurry.count();
        if !self.any() {
            self.hurry.sleep(count, Some(time));
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.pressed.store(0, Ordering::Relaxed);
        self.hurry.after_fork();
    }
}
