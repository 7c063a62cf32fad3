// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lock's memory of its waiters, with the epoch in which it was written: after a fork, the
//! parent's threads do not count (`platform/fork.rs`).

use crate::platform::fork::epoch;
use crate::platform::sync::{AtomicU64, Ordering, broken, const_unless_loom};

/// A count or a name. What another process has written reads as 0, and is replaced by the first
/// write.
#[repr(transparent)]
pub(crate) struct Stamped(AtomicU64);

#[inline]
fn stamp(value: u32) -> u64 {
    u64::from(epoch()) << 32 | u64::from(value)
}

/// The value, if it is of this process.
#[inline]
fn here(word: u64) -> u32 {
    let other = (word >> 32) as u32 != epoch();
    if broken!(GhostsCount, false, other) { 0 } else { word as u32 }
}

impl Stamped {
    const_unless_loom! {
        pub(crate) fn new() -> Stamped {
            Stamped(AtomicU64::new(0))
        }
    }

    /// As a process before this one left it.
    #[cfg(all(loom, test))]
    pub(crate) fn left(value: u32) -> Stamped {
        Stamped(AtomicU64::new(1 << 32 | u64::from(value)))
    }

    /// Whether it is not 0, in whatever process it was written.
    #[inline(always)]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) as u32 != 0
    }

    #[inline]
    pub(crate) fn get(&self) -> u32 {
        here(self.0.load(Ordering::SeqCst))
    }

    /// Clears it if another process has written it. Whether it is 0 now.
    pub(crate) fn is_clear(&self) -> bool {
        let word = self.0.load(Ordering::SeqCst);
        here(word) == 0 && (word as u32 == 0 || self.replace(word, 0).is_ok())
    }

    fn replace(&self, word: u64, value: u32) -> Result<u64, u64> {
        self.0.compare_exchange(word, stamp(value), Ordering::SeqCst, Ordering::Relaxed)
    }

    pub(crate) fn swap(&self, value: u32) {
        self.0.swap(stamp(value), Ordering::SeqCst);
    }

    /// As it is new.
    #[cfg(not(loom))]
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether it was `from`, and is `to` now.
    pub(crate) fn change(&self, from: u32, to: u32) -> bool {
        let mut word = stamp(from);
        while let Err(now) = self.replace(word, to) {
            if here(now) != from {
                return false;
            }
            word = now;
        }
        true
    }

    /// Counts one more. The count before, and whether this is the first write of this process.
    pub(crate) fn add(&self) -> (u32, bool) {
        let mut word = self.0.load(Ordering::Relaxed);
        while (word >> 32) as u32 != epoch() {
            let before = here(word);
            match self.replace(word, before + 1) {
                Ok(_) => return (before, true),
                Err(now) => word = now,
            }
        }
        (self.0.fetch_add(1, Ordering::SeqCst) as u32, false)
    }

    /// Counts one less, which this process has counted.
    pub(crate) fn sub(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
