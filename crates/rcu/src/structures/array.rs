// SPDX-License-Identifier: MIT OR Apache-2.0
//! A block of pointers with its length in front: one allocation, found with one load.
//!
//! Used through raw pointers: a reference would not reach beyond the fields that have a type.

use crate::platform::sync::AtomicPtr;
use crate::thread::head::Head;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::null_mut;

#[repr(C)]
pub(crate) struct Array<T> {
    pub(crate) len: usize,
    /// The user's.
    pub(crate) tag: usize,
    head: Head,
    pub(super) slots: [AtomicPtr<T>; 0],
}

impl<T> Array<T> {
    fn layout(len: usize) -> Layout {
        let slots =
            Layout::array::<AtomicPtr<T>>(len).and_then(|s| Layout::new::<Self>().extend(s));
        // An array whose size overflows cannot be asked for: its memory would have run out long
        // before.
        slots.expect("an array of pointers that fits the address space").0.pad_to_align()
    }

    /// An array of null pointers. It is the caller's until it is published.
    pub(crate) fn allocate(len: usize, tag: usize) -> *mut Array<T> {
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty; everything is written before it is used.
        unsafe {
            let array = alloc(layout).cast::<Array<T>>();
            if array.is_null() {
                handle_alloc_error(layout);
            }
            array.write(Array { len, tag, head: Head::new(), slots: [] });
            (0..len)
                .for_each(|i| Self::slot(array, i).cast_mut().write(AtomicPtr::new(null_mut())));
            array
        }
    }

    /// # Safety
    /// The array is alive; `index < len`.
    #[inline(always)]
    pub(crate) unsafe fn slot(array: *const Array<T>, index: usize) -> *const AtomicPtr<T> {
        // SAFETY: the caller's promise.
        unsafe { (&raw const (*array).slots).cast::<AtomicPtr<T>>().add(index) }
    }

    /// All slots.
    ///
    /// # Safety
    /// The array outlives `'a`.
    pub(crate) unsafe fn slots<'a>(array: *const Array<T>) -> &'a [AtomicPtr<T>] {
        // SAFETY: the caller's promise; all are initialized.
        unsafe { std::slice::from_raw_parts(Self::slot(array, 0), (*array).len) }
    }

    /// # Safety
    /// Nobody else's (any more).
    pub(crate) unsafe fn free(array: *mut Array<T>) {
        // SAFETY: the layout it was allocated with.
        unsafe {
            let layout = Self::layout((*array).len);
            // Atomics of std have nothing to drop, but loom's do.
            #[cfg(loom)]
            (0..(*array).len).for_each(|i| Self::slot(array, i).cast_mut().drop_in_place());
            dealloc(array.cast(), layout);
        }
    }

    /// Frees the array, but not the nodes it points to, after a grace period.
    ///
    /// # Safety
    /// All who can find it read through this domain; new sections cannot find it.
    #[cfg(not(loom))]
    pub(crate) unsafe fn retire(domain: &crate::domain::Domain, array: *mut Array<T>) {
        unsafe extern "C" fn run<T>(head: *mut Head) {
            // SAFETY: the head of an array of this type, whose grace period is over.
            unsafe {
                Array::free(head.byte_sub(std::mem::offset_of!(Array<T>, head)).cast::<Array<T>>())
            };
        }
        // SAFETY: the head is in the array's allocation, and used once. No slot ever holds an
        // array.
        unsafe {
            let bytes = Self::layout((*array).len).size();
            let head = &raw mut (*array).head;
            domain.retire(array.cast_const().cast(), head, run::<T>, bytes, true);
        }
    }
}
