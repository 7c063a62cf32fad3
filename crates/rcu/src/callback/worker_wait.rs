// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a worker sleeps, and how registrations wake it.
//!
//! > **Invariant.** A worker that sleeps without a limit has said so, then looked for work. A
//! > registration makes its work visible, then looks whether the worker has said so. Each has a
//! > fence in between. So the registration wakes the worker, or the worker finds the work.
//!
//! Registrations wake only a worker that sleeps: one that works will look again. And only one of
//! them: the first says that the worker is awake.
//!
//! > **Invariant.** The event has happened since the worker read its count before somebody else
//! > says that the worker is awake, about the sleep for which it read that count and no other.
//!
//! A worker that is said to be awake is thus awake or about to wake. A thread may end between any
//! two instructions of a wake-up: the worker is awake, or the next registration wakes it.

use crate::platform::event::Event;
use crate::platform::sync::{AtomicU32, Ordering, fence};
use std::time::Duration;

const AWAKE: u32 = 0;
/// Lets a batch gather, for a limited time.
const LINGERS: u32 = 1;
const SLEEPS: u32 = 2;
/// Bits of a state. Above is the count of the event, as the worker read it, as far as it fits.
const BITS: u32 = 2;

pub(crate) struct WorkerWait {
    /// `AWAKE`, or another one with a count.
    state: AtomicU32,
    work: Event,
}

impl WorkerWait {
    pub(crate) fn new() -> WorkerWait {
        WorkerWait { state: AtomicU32::new(AWAKE), work: Event::new() }
    }

    /// Tells of work that need not be done at once. Called after it is visible.
    pub(crate) fn notify(&self) {
        // Pairs with `sleep`'s.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) % (1 << BITS) == SLEEPS {
            self.wake();
        }
    }

    /// Tells of enough work for a batch.
    pub(crate) fn hurry(&self) {
        if self.state.load(Ordering::Relaxed) != AWAKE {
            self.wake();
        }
    }

    /// Wakes the worker, if it sleeps or waits for a batch to gather.
    pub(crate) fn wake(&self) {
        let found = self.state.load(Ordering::Relaxed);
        self.work.happen();
        if found != AWAKE {
            // Fails if the worker has woken, whatever it does now.
            let order = Ordering::Relaxed;
            let _ = self.state.compare_exchange(found, AWAKE, order, order);
        }
    }

    /// The two steps of `wake`, for models.
    #[cfg(all(loom, test))]
    pub(crate) fn event(&self) -> &Event {
        &self.work
    }

    /// About any sleep: for models that fail.
    #[cfg(all(loom, test))]
    pub(crate) fn say_awake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
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
        self.say(count << BITS | state);
        // Pairs with `notify`'s.
        fence(Ordering::SeqCst);
        if !found() {
            self.work.sleep(count, time);
        }
        self.say(AWAKE);
    }

    /// The worker. An exchange, since the checker does not know that a store comes after another
    /// thread's exchange that found the value before it.
    fn say(&self, state: u32) {
        self.state.swap(state, Ordering::Relaxed);
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
        self.work.after_fork();
    }
}
