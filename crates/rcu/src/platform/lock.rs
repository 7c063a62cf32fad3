// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutual-exclusion lock that the child of a fork can make free.

use super::Instant;
use super::sync::{AtomicU32, Ordering, wait, wake_some};
use std::time::Duration;

/// A mutual-exclusion lock without an owner. The child of a fork may reset it: the holder, if there
/// was one, does not exist there.
pub(crate) struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and threads may sleep on it.
const CONTENDED: u32 = 2;

impl Lock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    pub(crate) fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn lock(&self) {
        self.lock_for(None);
    }

    /// Waits at most `timeout` (for ever without one); tells whether the lock was taken.
    pub(crate) fn lock_for(&self, timeout: Option<Duration>) -> bool {
        if self.try_lock() {
            return true;
        }
        let end = timeout.map(|t| Instant::now() + t);
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            wait(&self.0, CONTENDED, left);
        }
        true
    }

    pub(crate) fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            wake_some(&self.0, 1);
        }
    }

    /// Makes the lock free, even if it is held. Only for the child of a fork, where the holder does
    /// not exist.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Relaxed);
    }
}
