// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node of a structure: a value, and behind it the head of the callback that frees it, so that
//! unlinking never allocates.
//!
//! The value comes first: the address of a node is the address of its value, which is what
//! `protect` puts into a slot and [`retire`] looks for.

#[cfg(not(loom))]
use crate::domain::Domain;
use crate::thread::head::Head;

/// A key with its value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Pair<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
}

#[repr(C)]
pub(crate) struct Node<T> {
    value: T,
    head: Head,
}

/// Allocates a node. It is the caller's until it is published.
pub(crate) fn allocate<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(Node { value, head: Head::new() })).cast()
}

/// Frees a node now.
///
/// # Safety
/// From [`allocate`], and nobody else's (any more).
pub(crate) unsafe fn free<T>(node: *mut T) {
    // SAFETY: the caller's promise; the value is the node's first field.
    drop(unsafe { Box::from_raw(node.cast::<Node<T>>()) });
}

/// Frees a node that was never published, and returns its value.
///
/// # Safety
/// As for [`free`].
pub(crate) unsafe fn take<T>(node: *mut T) -> T {
    // SAFETY: as in `free`.
    unsafe { Box::from_raw(node.cast::<Node<T>>()) }.value
}

/// A node that is not published yet: freed if the program's own code panics meanwhile.
#[cfg(not(loom))]
pub(crate) struct Unpublished<T>(*mut T);

#[cfg(not(loom))]
impl<T> Unpublished<T> {
    /// # Safety
    /// As for [`free`].
    pub(crate) unsafe fn new(node: *mut T) -> Unpublished<T> {
        Unpublished(node)
    }

    pub(crate) fn into_value(self) -> T {
        // SAFETY: nobody else's, by the promise of `new`.
        unsafe { take(self.into_node()) }
    }

    /// The node, which is the caller's to publish.
    pub(crate) fn into_node(self) -> *mut T {
        std::mem::ManuallyDrop::new(self).0
    }
}

#[cfg(not(loom))]
impl<T> std::ops::Deref for Unpublished<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: alive, and nobody else's.
        unsafe { &*self.0 }
    }
}

#[cfg(not(loom))]
impl<T> Drop for Unpublished<T> {
    fn drop(&mut self) {
        // SAFETY: by the promise of `new`.
        unsafe { free(self.0) };
    }
}

/// Unlinked nodes, to be retired together when this is dropped: after the lock under which they
/// were unlinked is given up.
#[cfg(not(loom))]
pub(crate) struct Unlinked<'a, T: Send + 'static> {
    domain: &'a Domain,
    /// Linked by their heads, which are unused until the nodes are retired.
    first: *mut Node<T>,
}

#[cfg(not(loom))]
impl<'a, T: Send + 'static> Unlinked<'a, T> {
    pub(crate) fn new(domain: &'a Domain) -> Unlinked<'a, T> {
        Unlinked { domain, first: std::ptr::null_mut() }
    }

    /// # Safety
    /// As for [`retire`].
    pub(crate) unsafe fn add(&mut self, node: *mut T) {
        let node: *mut Node<T> = node.cast();
        // SAFETY: the head is ours.
        unsafe { (*node).head.next = self.first.cast() };
        self.first = node;
    }
}

#[cfg(not(loom))]
impl<T: Send + 'static> Drop for Unlinked<'_, T> {
    fn drop(&mut self) {
        while !self.first.is_null() {
            let node = self.first;
            // SAFETY: by the promise of `add`; the successor is read before the node is given away.
            unsafe {
                self.first = (*node).head.next.cast();
                retire(self.domain, node.cast::<T>());
            }
        }
    }
}

/// Frees a node after a grace period in which no guard holds it. A value that needs no drop is
/// freed by any thread, else a worker drops it.
///
/// # Safety
/// From [`allocate`]; all who can find it read through this domain; new sections cannot find it.
#[cfg(not(loom))]
pub(crate) unsafe fn retire<T: Send + 'static>(domain: &Domain, node: *mut T) {
    use std::mem::{needs_drop, offset_of};

    unsafe extern "C" fn run<T>(head: *mut Head) {
        // SAFETY: the head of a node of this type, whose grace period is over.
        unsafe { free(head.byte_sub(offset_of!(Node<T>, head)).cast::<T>()) };
    }
    let leaf = !needs_drop::<T>();
    // SAFETY: the head is in the node's allocation, and used once.
    unsafe {
        let head = &raw mut (*node.cast::<Node<T>>()).head;
        domain.retire(node.cast_const().cast(), head, run::<T>, size_of::<Node<T>>(), leaf);
    }
}
