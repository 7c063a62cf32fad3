// SPDX-License-Identifier: MIT OR Apache-2.0
//! The array under [`IdTable`](super::IdTable), and how it grows: `grow_ary()` of the FREENIX 2003
//! paper.
//!
//! # Order
//! To grow, a writer copies the array, publishes the copy, *then* the new size, and has the old
//! array freed after a grace period. A reader loads the size, *then* the array: each a release
//! store that the acquiring load pairs with. So an index below the size that a reader saw lies
//! within the array that it sees.
//!
//! A reader on the old array misses objects that were added to the new one, and may find an object
//! that was taken out of it: this object is not freed before the reader's section ends, and its
//! flag says that it is deleted.

use crate::platform::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::structures::array::Array;

pub(crate) struct Table<E> {
    pub(crate) size: AtomicUsize,
    pub(crate) array: AtomicPtr<Array<E>>,
}

impl<E> Table<E> {
    pub(crate) fn new(size: usize) -> Table<E> {
        Table { size: AtomicUsize::new(size), array: AtomicPtr::new(Array::allocate(size, 0)) }
    }

    pub(crate) fn size(&self) -> usize {
        self.size.load(Ordering::Acquire)
    }

    /// The entry at `index`, or null.
    ///
    /// # Safety
    /// In a section of the table's domain, or excluding other writers.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, index: usize) -> *mut E {
        if index >= self.size() {
            return std::ptr::null_mut();
        }
        // SAFETY: the array found after the size has that index, and is alive in the section.
        unsafe { (*Array::slot(self.array.load(Ordering::Acquire), index)).load(Ordering::Acquire) }
    }

    /// Publishes `entry` (null: takes the old entry out).
    ///
    /// # Safety
    /// The caller excludes other writers; `index < size`.
    pub(crate) unsafe fn set(&self, index: usize, entry: *mut E) {
        // SAFETY: the caller's promise.
        unsafe {
            (*Array::slot(self.array.load(Ordering::Relaxed), index))
                .store(entry, Ordering::Release)
        };
    }

    /// Makes room for `size` entries, more than there is, and returns the old array to be freed
    /// after a grace period.
    ///
    /// # Safety
    /// The caller excludes other writers.
    pub(crate) unsafe fn grow(&self, size: usize) -> *mut Array<E> {
        let new = Array::allocate(size, 0);
        let old = self.array.load(Ordering::Relaxed);
        // SAFETY: no other writers; the new array is ours until it is published. What the slots
        // lead to was published by other stores, which the release of the array passes on.
        unsafe {
            for (index, slot) in Array::slots(old).iter().enumerate() {
                (*Array::slot(new, index)).store(slot.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        self.array.store(new, Ordering::Release);
        self.size.store(size, Ordering::Release);
        old
    }
}
