// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods that somebody will poll for, and the thread that runs them.
//!
//! > **Invariant.** The driver sleeps only when the last grace period that was asked for has ended, or is about to be woken: who asks writes the
//! > cookie before it rings, and the driver reads the bell before the cookie.

use crate::grace::{Cookie, Grace};
use crate::sync::{AtomicU64, Bell, Ordering};

pub(crate) struct Wanted {
    /// The last cookie that somebody will poll for.
    last: AtomicU64,
    bell: Bell,
}

impl Wanted {
    pub(crate) fn new() -> Wanted {
        Wanted { last: AtomicU64::new(0), bell: Bell::new() }
    }

    pub(crate) fn last(&self) -> Cookie {
        Cookie(self.last.load(Ordering::Acquire))
    }

    /// Somebody will poll for it. The driver, if there is one, sees to it.
    pub(crate) fn ask(&self, cookie: Cookie) {
        self.last.fetch_max(cookie.0, Ordering::Release);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    /// The driver: has all grace periods run that are asked for, by `run`, until it is told to stop.
    pub(crate) fn serve(&self, grace: &Grace, run: impl Fn(Cookie), stopping: impl Fn() -> bool) {
        loop {
            let event = self.bell.event();
            let last = self.last();
            if !grace.done(last) {
                run(last);
            } else if stopping() {
                return;
            } else {
                self.bell.sleep(event, None);
            }
        }
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.bell.after_fork();
    }
}
