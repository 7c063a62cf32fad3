// SPDX-License-Identifier: MIT OR Apache-2.0
//! An object of a table with its lock and its `deleted` flag.

use super::id::Id;
use crate::structures::lock::Lock;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// An object in an [`IdTable`](super::IdTable), or one that was there a moment ago.
#[repr(C)]
pub struct Entry<T> {
    pub(super) id: Id,
    lock: Lock,
    deleted: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached under the lock only.
unsafe impl<T: Send> Sync for Entry<T> {}

impl<T> Entry<T> {
    /// Its id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// Whether it has been removed. Once true, always true; false says nothing about the next
    /// moment, unless under the lock.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }

    pub(super) fn new(id: Id, value: T) -> Entry<T> {
        let (lock, deleted) = (Lock::new(), AtomicBool::new(false));
        Entry { id, lock, deleted, value: UnsafeCell::new(value) }
    }

    /// Takes the object's lock. `None` if it has been removed. It is not removed while the lock
    /// is held.
    pub fn lock(&self) -> Option<Live<'_, T>> {
        self.lock.lock();
        let live = Live(self, PhantomData);
        // Relaxed: set under the lock.
        if self.is_deleted() { None } else { Some(live) }
    }
}

/// An object that is in its table for as long as this lives: its lock is held.
pub struct Live<'e, T>(pub(super) &'e Entry<T>, PhantomData<*mut T>);

// SAFETY: shared, it gives out shared references to the value, and nothing else. (`Entry` asks
// for less: there is a lock in between.)
unsafe impl<T: Send + Sync> Sync for Live<'_, T> {}

impl<T> Live<'_, T> {
    /// The object is out of its table from now on.
    pub(super) fn set_deleted(&self) {
        self.0.deleted.store(true, Ordering::Relaxed);
    }

    /// Its id.
    pub fn id(&self) -> Id {
        self.0.id
    }
}

impl<T> Deref for Live<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Live<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Live<'_, T> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
