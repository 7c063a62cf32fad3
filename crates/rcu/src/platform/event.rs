// SPDX-License-Identifier: MIT OR Apache-2.0
//! An event that threads sleep for: a count, and a futex on it.
//!
//! > **Invariant.** A thread that sleeps has read the count, then said that it sleeps, then the
//! > kernel has found the count as it was read. A thread that makes the event happen changes the
//! > count, then looks for sleepers. So it wakes the sleeper, or the kernel does not let it sleep.

use super::sync::{AtomicU32, Ordering, const_unless_loom, fence};
#[cfg(not(loom))]
use super::sync::{wait, wake_all};
use std::time::Duration;

pub(crate) struct Event {
    count: AtomicU32,
    sleepers: AtomicU32,
    /// A model's futex: it finds threads that sleep for ever.
    #[cfg(loom)]
    futex: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Event {
    const_unless_loom! {
        pub(crate) fn new() -> Event {
            Event {
                count: AtomicU32::new(0),
                sleepers: AtomicU32::new(0),
                #[cfg(loom)]
                futex: (loom::sync::Mutex::new(()), loom::sync::Condvar::new())
            }
        }
    }

    /// How often it has happened. To be read before looking for what the event announces.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Sleeps unless it has happened since `count` was read. At most `time`; may return early.
    pub(crate) fn sleep(&self, count: u32, time: Option<Duration>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.wait(count, time);
        self.awake();
    }

    /// Sleeps until it happens, at most `time`, unless `found` finds what the event announces.
    /// Looks after it has said that it sleeps, so a thread that finds [no sleeper](Event::awaited)
    /// need not make the event happen. Each of the two has a fence between its store and its look:
    /// one of them sees the other's store.
    #[cfg(not(loom))]
    pub(crate) fn sleep_unless(&self, time: Duration, found: impl FnOnce() -> bool) {
        let count = self.count();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !found() {
            self.wait(count, Some(time));
        }
        self.awake();
    }

    /// The end of a sleep. The number of sleepers may have been set to 0 meanwhile, in the child of
    /// a fork.
    fn awake(&self) {
        let less = |sleepers: u32| sleepers.checked_sub(1);
        let _ = self.sleepers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// Whether threads sleep. The caller has changed what the event announces, and then executed a
    /// sequentially consistent fence.
    #[cfg(not(loom))]
    pub(crate) fn awaited(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// The event happens: wakes all sleepers. Returns the new count.
    pub(crate) fn happen(&self) -> u32 {
        let count = self.count.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        // The checker treats sequentially consistent accesses as weaker than they are.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
        count
    }

    /// For models of a thread that ends in the middle of `happen`.
    #[cfg(all(loom, test))]
    pub(crate) fn begin_to_happen(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The event happens: wakes that many threads.
    #[cfg(not(loom))]
    pub(crate) fn happen_for(&self, threads: i32) {
        self.count.fetch_add(1, Ordering::SeqCst);
        super::sync::wake_some(&self.count, threads);
    }

    #[cfg(not(loom))]
    fn wait(&self, count: u32, time: Option<Duration>) {
        wait(&self.count, count, time);
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        wake_all(&self.count);
    }

    /// In a model no thread wakes without a reason.
    #[cfg(loom)]
    fn wait(&self, count: u32, time: Option<Duration>) {
        if time.is_some() {
            return loom::thread::yield_now();
        }
        fence(Ordering::SeqCst);
        let mut guard = self.futex.0.lock().unwrap();
        while self.count() == count {
            guard = self.futex.1.wait(guard).unwrap();
        }
    }

    #[cfg(loom)]
    fn wake(&self) {
        drop(self.futex.0.lock().unwrap());
        self.futex.1.notify_all();
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.sleepers.store(0, Ordering::Relaxed);
    }
}
