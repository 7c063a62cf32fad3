// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stores and loads of a list's links.
//!
//! # Order
//! A writer fills in an entry and its links, and then publishes it with one release store to its
//! predecessor's `next`; readers follow `next` with acquiring loads, and nothing else. An entry
//! that is taken out keeps its `next`, so a reader on it goes on to the entries behind it, up to
//! the end: a walk during a removal sees every entry that stays. (An entry therefore cannot be put
//! into a list again before a grace period has passed.) Only writers, which exclude each other,
//! follow `prev`. Null there marks an entry that was taken out: scans look for that
//! before they follow its `next` in a later section (`scan`).

use crate::platform::sync::{AtomicPtr, Ordering, const_unless_loom};
use std::ptr::null_mut;

/// The links of an entry of a circular, doubly linked list, and of the list itself (`struct
/// list_head`). It must not move while it is in use.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ListHead {
    pub(crate) next: AtomicPtr<ListHead>,
    pub(super) prev: AtomicPtr<ListHead>,
}

impl ListHead {
    const_unless_loom! {
        /// In no list; as a list, not initialized: see [`init_list_head`].
        pub(crate) fn new() -> ListHead {
            ListHead { next: AtomicPtr::new(null_mut()), prev: AtomicPtr::new(null_mut()) }
        }
    }

    /// The entry before, or the list itself; null for one that was taken out. Under the lock, or to
    /// look for the mark: only writers may follow it.
    pub(crate) fn prev(&self) -> *mut ListHead {
        self.prev.load(Ordering::Acquire)
    }

    /// The next entry, or the list itself. Acquires it.
    #[inline(always)]
    pub(crate) fn next(&self) -> *mut ListHead {
        self.next.load(Ordering::Acquire)
    }
}

/// Makes `head` an empty list (`INIT_LIST_HEAD`).
///
/// # Safety
/// Valid, and not in use.
pub(crate) unsafe fn init_list_head(head: *mut ListHead) {
    // SAFETY: the caller's promise.
    let this = unsafe { &*head };
    this.next.store(head, Ordering::Relaxed);
    this.prev.store(head, Ordering::Relaxed);
}

/// # Safety
/// `prev` and `next` follow each other in a list; else as [`list_add_rcu`].
unsafe fn insert(new: *mut ListHead, prev: *mut ListHead, next: *mut ListHead) {
    // SAFETY: the caller's promise.
    unsafe {
        (*new).next.store(next, Ordering::Relaxed);
        (*new).prev.store(prev, Ordering::Relaxed);
        // Publishes the entry.
        (*prev).next.store(new, Ordering::Release);
        (*next).prev.store(new, Ordering::Relaxed);
    }
}

/// Puts `new` behind `head`: at the front, if that is a list.
///
/// # Safety
/// The caller excludes other writers of the list. `new` is valid, in no list, and no reader can
/// still be on it; it stays where it is until a grace period after its removal. `head` is a list or
/// in one.
pub(crate) unsafe fn list_add_rcu(new: *mut ListHead, head: *mut ListHead) {
    // SAFETY: the caller's promise.
    unsafe { insert(new, head, (*head).next.load(Ordering::Relaxed)) };
}

/// Puts `new` before `head`: at the end, if that is a list.
///
/// # Safety
/// As for [`list_add_rcu`].
pub(crate) unsafe fn list_add_rcu_tail(new: *mut ListHead, head: *mut ListHead) {
    // SAFETY: the caller's promise.
    unsafe { insert(new, (*head).prev.load(Ordering::Relaxed), head) };
}

/// Takes `entry` out. Readers may be on it until a grace period has passed: only then may it be
/// freed, or used again.
///
/// # Safety
/// The caller excludes other writers of the list, in which the entry is.
pub(crate) unsafe fn list_del_rcu(entry: *mut ListHead) {
    // SAFETY: the caller's promise.
    unsafe {
        let (prev, next) =
            ((*entry).prev.load(Ordering::Relaxed), (*entry).next.load(Ordering::Relaxed));
        (*next).prev.store(prev, Ordering::Relaxed);
        // Release: the successor may be another thread's work, which this store passes on.
        (*prev).next.store(next, Ordering::Release);
        (*entry).prev.store(null_mut(), Ordering::Relaxed);
    }
}

/// Puts `new` where `old` is, in one step: readers find the one or the other.
///
/// # Safety
/// As for [`list_add_rcu`] and [`list_del_rcu`].
pub(crate) unsafe fn list_replace_rcu(old: *mut ListHead, new: *mut ListHead) {
    // SAFETY: the caller's promise.
    unsafe {
        let (prev, next) =
            ((*old).prev.load(Ordering::Relaxed), (*old).next.load(Ordering::Relaxed));
        insert(new, prev, next);
        (*old).prev.store(null_mut(), Ordering::Relaxed);
    }
}
