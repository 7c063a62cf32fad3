// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library's own functions, behind ours.

use crate::image;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library's, looked up when it is first needed.
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, at: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address. Ends the program if there is no such function: it was called, so there was one.
    pub fn address(&self) -> *mut c_void {
        let mut at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            // SAFETY: no preconditions.
            at = image::libc(self.name).unwrap_or_else(|| unsafe { libc::abort() });
            self.at.store(at, Ordering::Relaxed);
        }
        at
    }
}

/// The name of a function, from its Rust name and a zero.
pub const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a zero ends the name"),
    }
}

/// Calls the C library's function of that name; as `"C-unwind"` where threads are cancelled. Out of
/// the way of locks that are ours.
macro_rules! next {
    ($name:ident $arguments:tt) => { $crate::next::next!("C", $name $arguments) };
    ($abi:literal, $name:ident ( $($argument:ident => $kind:ty),* )) => {{
        #[cold]
        #[inline(never)]
        unsafe extern $abi fn call($($argument: $kind),*) -> libc::c_int {
            static NEXT: $crate::next::Next =
                $crate::next::Next::new($crate::next::c_name(concat!(stringify!($name), "\0")));
            type Function = unsafe extern $abi fn($($kind),*) -> libc::c_int;
            let at = NEXT.address();
            // SAFETY: the function of that name has these arguments.
            let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(at) };
            // SAFETY: the caller's promise to us is the one to it.
            unsafe { function($($argument),*) }
        }
        // SAFETY: as above.
        unsafe { call($($argument),*) }
    }};
}
pub(crate) use next;

/// Exports functions by the C library's names. Each does what follows if `ours` finds that the lock
/// is one of ours; else it calls the C library's.
macro_rules! replaces {
    ($(
        $name:ident($lock:ident: $type:ty $(, $argument:ident: $kind:ty)*)
            |$ours:pat_param| $call:expr;
    )*) => {$(
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some have no preconditions")]
        pub unsafe extern "C" fn $name($lock: $type $(, $argument: $kind)*) -> libc::c_int {
            match ours($lock) {
                // SAFETY: the caller's promise.
                Some($ours) => unsafe { $call },
                None => $crate::next::next!($name($lock => $type $(, $argument => $kind)*)),
            }
        }
    )*};
}
pub(crate) use replaces;

/// 0 if a lock was taken.
pub fn taken(taken: bool, otherwise: libc::c_int) -> libc::c_int {
    if taken { 0 } else { otherwise }
}
