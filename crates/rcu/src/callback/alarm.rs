// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a worker sleeps on, and who wakes it.
//!
//! > **Invariant.** A worker that sleeps without a limit has looked for work after it had said so, and a registration looks whether it has said so
//! > after its work could be found. Each has a fence in between. So a registration wakes the worker, or the worker finds the work.
//!
//! Registrations ring only a worker that sleeps: one that works will look again.

use crate::sync::{AtomicU32, Bell, Ordering, fence};
use std::time::Duration;

const AWAKE: u32 = 0;
/// Lets a batch gather, for a limited time.
const LINGERS: u32 = 1;
const SLEEPS: u32 = 2;

pub(crate) struct Alarm {
    state: AtomicU32,
    bell: Bell,
}

impl Alarm {
    pub(crate) fn new() -> Alarm {
        Alarm { state: AtomicU32::new(AWAKE), bell: Bell::new() }
    }

    /// There is something to do, in its time. Called when it can be found.
    pub(crate) fn work(&self) {
        // Pairs with `sleep`'s.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == SLEEPS {
            self.wake();
        }
    }

    /// There is enough to do.
    pub(crate) fn enough(&self) {
        if self.state.load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    /// Wakes the worker whatever it does.
    pub(crate) fn wake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        self.bell.ring();
    }

    /// The worker: sleeps until it is woken, at most `time`, unless `found` finds work.
    pub(crate) fn sleep(&self, time: Option<Duration>, found: impl FnOnce() -> bool) {
        self.nap(SLEEPS, time, found);
    }

    /// The worker: sleeps until there is enough to do, at most `time`, unless there is `enough` already.
    #[cfg(not(loom))]
    pub(crate) fn linger(&self, time: Duration, enough: impl FnOnce() -> bool) {
        self.nap(LINGERS, Some(time), enough);
    }

    fn nap(&self, state: u32, time: Option<Duration>, found: impl FnOnce() -> bool) {
        let event = self.bell.event();
        self.state.store(state, Ordering::Relaxed);
        // Pairs with `work`'s.
        fence(Ordering::SeqCst);
        if !found() {
            self.bell.sleep(event, time);
        }
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        self.bell.after_fork();
    }
}
