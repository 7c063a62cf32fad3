// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a lookup is passed into the section, and its result back.
//!
//! A lookup of one or two words is passed in registers, a larger one by reference; a result of one
//! or two words returns in registers, a larger one is written to memory of the caller's. Memory
//! would work for all, but costs some five cycles from a store to the load that depends on it,
//! twice per lookup. Conversions go through unions: raw pointers would work too, but their checks
//! panic in builds with debug assertions.

use super::Lookup;
use std::mem::{ManuallyDrop, MaybeUninit, transmute};

/// The content of a register.
pub(super) type Register = MaybeUninit<usize>;

/// Whether a value travels in registers.
pub(super) const fn in_registers<T>() -> bool {
    size_of::<T>() <= 2 * size_of::<Register>()
}

/// A lookup. It must outlive this.
#[repr(C)]
pub(super) union Argument<'a, L> {
    pub(super) words: [Register; 2],
    value: ManuallyDrop<L>,
    reference: &'a L,
}

/// A result that fits into two registers.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[repr(C)]
pub(super) union Output<T: Copy> {
    pub(super) words: [Register; 2],
    pub(super) value: T,
}

impl<'a, L: Lookup> Argument<'a, L> {
    #[inline(always)]
    pub(super) fn new(lookup: &'a L) -> Self {
        if const { in_registers::<L>() } {
            let mut argument = Argument { words: [Register::uninit(); 2] };
            // SAFETY: a copy that is never dropped, and of which nothing but a shared reference is
            // made while the original is borrowed.
            argument.value = unsafe { ManuallyDrop::new(std::ptr::read(lookup)) };
            argument
        } else {
            Argument { reference: lookup }
        }
    }

    /// For use inside: no calls.
    ///
    /// # Safety
    /// This has the words of one made by [`new`](Self::new).
    #[inline(always)]
    pub(super) unsafe fn lookup(&self) -> &L {
        // SAFETY: `new` set this field. `ManuallyDrop<L>` has the layout of `L`.
        unsafe {
            if const { in_registers::<L>() } {
                transmute::<&ManuallyDrop<L>, &L>(&self.value)
            } else {
                self.reference
            }
        }
    }
}
