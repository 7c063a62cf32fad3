// SPDX-License-Identifier: MIT OR Apache-2.0
//! How values are copied out of a restartable section.
//!
//! Inside, a copy must be a few moves in line: the compiler turns longer ones into calls of
//! `memcpy`, which leave the section. In unoptimized builds the limit is 32 bytes, of everything a
//! lookup returns. Values beyond [`fits`] are copied from a protected node instead, outside the
//! section.

use std::mem::MaybeUninit;

/// `N` words, of which a value may fill the first ones.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Words<const N: usize>([MaybeUninit<u64>; N]);

/// Whether [`Words<N>`] can hold a `T`, and may be returned from a section.
pub(crate) const fn fits<T, const N: usize>() -> bool {
    N <= 4 && size_of::<T>() <= size_of::<Words<N>>() && align_of::<T>() <= align_of::<Words<N>>()
}

impl<const N: usize> Words<N> {
    pub(crate) const EMPTY: Words<N> = Words([MaybeUninit::uninit(); N]);

    /// Copies `*from`. For use inside: no calls.
    ///
    /// # Safety
    /// [`fits`]; `from` is alive and not written to.
    #[inline(always)]
    pub(crate) unsafe fn copy<T: Copy>(from: *const T) -> Words<N> {
        let mut words = Words::EMPTY;
        // SAFETY: the caller's promise.
        unsafe { *(&raw mut words as *mut T) = *from };
        words
    }

    /// # Safety
    /// From [`Words::copy`] of the same type.
    #[inline(always)]
    pub(crate) unsafe fn value<T: Copy>(self) -> T {
        // SAFETY: the caller's promise.
        unsafe { *(&raw const self as *const T) }
    }
}
