// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that runs the grace periods which were started and are only polled for.
//!
//! > **Invariant.** While a started grace period has not ended, a driver is at it or the next poll sees to one; and the driver runs
//! > nothing but grace periods.
//!
//! So a program may poll wherever it likes, in a callback too: workers cannot drive, since a callback keeps its worker as long as it
//! likes. Started by the first `start_poll`. A poll starts it anew in the child of a fork, and makes an attempt of its own where the
//! system has no thread for us.

use super::core::Core;
use crate::grace::Cookie;
use crate::sys;
use crate::wanted::Wanted;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a poll without a driver tries.
const ATTEMPT: Duration = Duration::from_millis(1);

pub(super) struct Driver {
    wanted: Wanted,
    started: AtomicBool,
}

impl Driver {
    pub(super) fn new() -> Driver {
        Driver { wanted: Wanted::new(), started: AtomicBool::new(false) }
    }

    pub(super) fn wake(&self) {
        self.wanted.wake();
    }

    /// Has the grace period run in the background.
    pub(super) fn start(&self, core: &Arc<Core>, cookie: Cookie) {
        self.wanted.ask(cookie);
        self.ensure(core);
    }

    /// Somebody polls for a grace period that has not ended. Tells whether it has by now.
    #[cold]
    pub(super) fn poll(&self, core: &Arc<Core>, cookie: Cookie) -> bool {
        // Cookies that were not started are nobody's business.
        self.wanted.last().0 >= cookie.0
            && !self.ensure(core)
            && core.run_until(cookie, Some(Instant::now() + ATTEMPT))
    }

    /// Whether there is a driver, started just now if need be.
    fn ensure(&self, core: &Arc<Core>) -> bool {
        if self.started.load(Ordering::Relaxed) {
            return true;
        }
        // A handler that ends this thread, or forks, does not come in between.
        let _blocked = sys::SignalsBlocked::new();
        if self.started.swap(true, Ordering::Relaxed) {
            return true;
        }
        let thread_core = core.clone();
        let drive = move || thread_core.driver.drive(&thread_core);
        match sys::Thread::start("reprieve-gp".into(), sys::STACK, drive) {
            Some(thread) => core.workers.add(thread),
            None => self.started.store(false, Ordering::Relaxed),
        }
        self.started.load(Ordering::Relaxed)
    }

    fn drive(&self, core: &Core) {
        let run = |cookie| {
            core.run_until(cookie, None);
        };
        self.wanted.serve(&core.grace, run, || core.stopping());
    }

    /// In the child of a fork: there is no driver.
    pub(super) fn after_fork(&self) {
        self.started.store(false, Ordering::Relaxed);
        self.wanted.after_fork();
    }
}
