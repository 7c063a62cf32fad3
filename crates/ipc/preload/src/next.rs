// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that ours stand before.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// A function of the next library in the search order.
pub struct Next {
    name: &'static CStr,
    address: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicUsize::new(0) }
    }

    /// Its address; 0 if there is none.
    pub fn address(&self) -> usize {
        match self.address.load(Relaxed) {
            0 => {
                // SAFETY: a string.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
                self.address.store(found, Relaxed);
                found
            }
            known => known,
        }
    }
}

/// Calls the next function of a name as one of that type; -1 with `ENOSYS` if there is none.
macro_rules! next {
    ($name:literal, fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new($name);
        match NEXT.address() {
            0 => {
                // SAFETY: this thread's own.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                -1 as $result
            }
            address => {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: the C library's function of this name has this type.
                let next = unsafe { std::mem::transmute::<usize, Function>(address) };
                // SAFETY: what our caller owes it.
                unsafe { next($($argument),*) }
            }
        }
    }};
}
pub(crate) use next;
