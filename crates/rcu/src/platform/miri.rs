// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library's functions that Miri lacks, for a program without signals, forks, cancellation
//! and dynamic linking. Miri calls them where `libc` declares them. The rest of the crate is what
//! users run on macOS: plain sections, and fences in readers.

use std::ffi::{c_int, c_void};

macro_rules! do_nothing {
    ($($name:ident($($argument:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) -> c_int {
            0
        }
    )* };
}

do_nothing! {
    sigfillset(*mut libc::sigset_t);
    pthread_sigmask(c_int, *const libc::sigset_t, *mut libc::sigset_t);
    pthread_setcancelstate(c_int, *mut c_int);
    dladdr(*const c_void, *mut libc::Dl_info);
    issetugid();
}
