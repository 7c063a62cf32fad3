// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pointer of a [`Cell`](super::Cell): how nodes are published and unlinked.

use crate::platform::sync::{AtomicPtr, Ordering};

/// Never null. Each node is unlinked once, by the caller to which it is returned.
pub(crate) struct Pointer<T>(pub(crate) AtomicPtr<T>);

impl<T> Pointer<T> {
    pub(crate) fn new(node: *mut T) -> Pointer<T> {
        Pointer(AtomicPtr::new(node))
    }

    /// Acquires what the writer wrote before it published the node.
    #[inline(always)]
    pub(crate) fn load(&self) -> *mut T {
        self.0.load(Ordering::Acquire)
    }

    /// Publishes `new` (release) and returns the old node to be freed (acquire).
    pub(crate) fn swap(&self, new: *mut T) -> *mut T {
        self.0.swap(new, Ordering::AcqRel)
    }

    /// Publishes `new` if `current` is still there, and returns `current`. Else returns the pointer
    /// that is there (acquire: the caller will read the node).
    ///
    /// `current` has not been freed since the caller found it (it is in a section, or holds it
    /// protected).
    pub(crate) fn replace(&self, current: *mut T, new: *mut T) -> Result<*mut T, *mut T> {
        self.0.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
}
