// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a worker sleeps, and how registrations wake it.
//!
//! > **Invariant.** A worker that sleeps without a limit has said so, then looked for work. A
//! > registration makes its work visible, then looks whether the worker has said so. Each has a
//! > fence in between. So the registration wakes the worker, or the worker finds the work.
//!
//! Registrations wake only a worker that sleeps: one that works will look again.

use crate::platform::event::Event;
use crate::platform::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

const AWAKE: u32 = 0;
/// Lets a batch gather, for a limited time.
const LINGERS: u32 = 1;
const SLEEPS: u32 = 2;

pub(crate) struct WorkerWait {
    state: AtomicU32,
    work: Event,
}

impl WorkerWait {
    pub(crate) fn new() -> WorkerWait {
        WorkerWait { state: AtomicU32::new(AWAKE), work: Event::new() }
    }

    /// There is work, which need not be done at once. Called after it is visible.
    pub(crate) fn notify(&self) {
        // Pairs with `sleep`'s.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == SLEEPS {
            self.wake();
        }
    }

    /// There is enough work for a batch.
    pub(crate) fn hurry(&self) {
        if self.state.load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    /// Wakes the worker, if it sleeps or waits for a batch to gather.
    pub(crate) fn wake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        self.work.happen();
    }

    /// The worker: sleeps until it is woken, at most `time`, unless `found` finds work.
    pub(crate) fn sleep(&self, time: Option<Duration>, found: impl FnOnce() -> bool) {
        self.nap(SLEEPS, time, found);
    }

    /// The worker: lets a batch gather until there is enough work, at most `time`. Returns at once
    /// if `enough` says so.
    #[cfg(not(loom))]
    pub(crate) fn linger(&self, time: Duration, enough: impl FnOnce() -> bool) {
        self.nap(LINGERS, Some(time), enough);
    }

    fn nap(&self, state: u32, time: Option<Duration>, found: impl FnOnce() -> bool) {
        let count = self.work.count();
        self.state.store(state, Ordering::Relaxed);
        // Pairs with `notify`'s.
        fence(Ordering::SeqCst);
        if !found() {
            self.work.sleep(count, time);
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        self.work.after_fork();
    }
}
