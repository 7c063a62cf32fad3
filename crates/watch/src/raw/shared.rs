// SPDX-License-Identifier: MIT OR Apache-2.0
//! An array that the eBPF program and this process both have in memory.
//!
//! Either side may write while the other reads. Every access is volatile and of plain integers, for
//! which any bits are a value. A reader that needs several values of one moment has to check that
//! they are (`VcpuSlot::get` does).

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Types made of integers only, without padding that matters: any bits are a value.
///
/// # Safety
/// Just that.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: made of integers.
unsafe impl Plain for super::types::vcpu {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::vm {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::spins {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::cost {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::event {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::pair {}
// SAFETY: made of integers.
unsafe impl Plain for super::types::taken_times {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

/// A mapped array of `T`.
pub struct Shared<T> {
    base: NonNull<T>,
    len: usize,
    bytes: usize,
    of: PhantomData<T>,
}

// SAFETY: all accesses are volatile, of plain integers, in memory that stays mapped as long as this
// lives.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// Maps the first `len` elements of the array map `fd`, whose values are `T`.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Shared<T>> {
        assert_eq!(size_of::<T>() % 8, 0, "the kernel rounds the size of array elements up to 8");
        let bytes = len * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a size that the kernel checks against the map's.
        let base = unsafe {
            let at = std::ptr::null_mut();
            libc::mmap(at, bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Shared { base, len, bytes, of: PhantomData })
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.len
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.len, "element {index} of {}", self.len);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(index) }
    }

    /// Element `index`, read while it may change.
    pub fn get(&self, index: usize) -> T {
        // SAFETY: `at` is valid and aligned, and any bits are a `T`.
        unsafe { self.at(index).read_volatile() }
    }

    /// Replaces element `index`.
    pub fn put(&self, index: usize, value: T) {
        // SAFETY: as in `get`.
        unsafe { self.at(index).write_volatile(value) }
    }

    fn field<U: Plain>(&self, index: usize, offset: usize) -> *mut U {
        assert!(offset % align_of::<U>() == 0 && offset + size_of::<U>() <= size_of::<T>());
        // SAFETY: within the element.
        unsafe { self.at(index).byte_add(offset).cast() }
    }

    /// The field of element `index` at `offset`.
    pub fn get_field<U: Plain>(&self, index: usize, offset: usize) -> U {
        // SAFETY: `field` is within an element and aligned (elements are to at least 8), and any
        // bits are a `U`.
        unsafe { self.field::<U>(index, offset).read_volatile() }
    }

    /// Sets the field of element `index` at `offset`.
    pub fn set_field<U: Plain>(&self, index: usize, offset: usize, value: U) {
        // SAFETY: as in `get_field`.
        unsafe { self.field::<U>(index, offset).write_volatile(value) }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing borrows it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
