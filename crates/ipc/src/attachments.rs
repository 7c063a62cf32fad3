// SPDX-License-Identifier: MIT OR Apache-2.0
//! The segments that this process has attached.
//!
//! The list says which ones, not where they are: the program may unmap, move or cut what it has
//! attached, and the library is not told. Where that matters, `/proc` is asked.

use crate::namespace::Namespace;
use crate::signals::Call;
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// A segment that was attached, as often as it was.
#[derive(Clone, Copy)]
pub(crate) struct Attachment {
    pub namespace: Namespace,
    pub id: i32,
    /// The number of its file.
    pub inode: u64,
    /// Where it was attached, and with which length.
    pub address: usize,
    pub length: usize,
}

impl Attachment {
    pub fn is_of_same_segment(&self, other: &Attachment) -> bool {
        std::ptr::eq(self.namespace.space, other.namespace.space) && self.id == other.id
    }
}

struct List {
    locked: AtomicBool,
    list: UnsafeCell<Vec<Attachment>>,
}

// SAFETY: the list is touched under the lock only.
unsafe impl Sync for List {}

static LIST: List = List { locked: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

fn try_lock() -> bool {
    let free = !LIST.locked.swap(true, Acquire);
    if !free {
        crate::sys::pause(Duration::from_micros(20));
    }
    free
}

/// Locks the list, for [`unlock`] by the same thread or, after a fork, its child's.
pub(crate) fn lock() {
    while !try_lock() {}
}

/// The same, unless it takes long: a thread that was not forked may have held the lock.
pub(crate) fn lock_soon() -> bool {
    (0..1000).any(|_| try_lock())
}

/// # Safety
/// This thread holds the lock.
pub(crate) unsafe fn list() -> &'static mut Vec<Attachment> {
    // SAFETY: the caller's promise.
    unsafe { &mut *LIST.list.get() }
}

pub(crate) fn unlock() {
    LIST.locked.store(false, Release);
}

/// Runs `f` on the list, alone. In a call: a handler of this thread would wait for it.
pub(crate) fn with<R>(_call: &Call, f: impl FnOnce(&mut Vec<Attachment>) -> R) -> R {
    lock();
    // SAFETY: locked.
    let result = f(unsafe { list() });
    unlock();
    result
}
