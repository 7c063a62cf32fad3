// SPDX-License-Identifier: MIT OR Apache-2.0
//! A link that holds the distance to its target instead of an address: it means the same in every
//! process that maps the memory, at whatever address. Registries use no other links, so a registry
//! may lie in shared memory.

use crate::platform::sync::{AtomicIsize, Ordering, const_unless_loom};
use std::marker::PhantomData;

/// Distance in bytes from the link itself to a `T`. 0: no target (no link leads to itself).
#[repr(transparent)]
pub(crate) struct Link<T>(AtomicIsize, PhantomData<*const T>);

// SAFETY: a link is a number; the caller that follows it answers for the target.
unsafe impl<T> Send for Link<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Link<T> {}

impl<T> Link<T> {
    const_unless_loom! {
        pub(crate) fn null() -> Link<T> {
            Link(AtomicIsize::new(0), PhantomData)
        }
    }

    fn here(&self) -> isize {
        (self as *const Link<T>).expose_provenance() as isize
    }

    /// The target, or null. Acquires what the publisher wrote before [`Link::replace`] or
    /// [`Link::set`].
    pub(crate) fn get(&self) -> *mut T {
        match self.0.load(Ordering::Acquire) {
            0 => std::ptr::null_mut(),
            distance => std::ptr::with_exposed_provenance_mut((self.here() + distance) as usize),
        }
    }

    fn distance(&self, target: *mut T) -> isize {
        if target.is_null() { 0 } else { target.expose_provenance() as isize - self.here() }
    }

    pub(crate) fn set(&self, target: *mut T) {
        self.0.store(self.distance(target), Ordering::Release);
    }

    /// Publishes `new` if the target is still `old`.
    pub(crate) fn replace(&self, old: *mut T, new: *mut T) -> bool {
        self.0
            .compare_exchange(
                self.distance(old),
                self.distance(new),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    }
}
