// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program, or a library preloaded into it, replaces the C library's clock: `faketime -f` has it
//! stand still. The runtime's waits end all the same.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use reprieve::{Cap, Domain};
use std::thread;
use std::time::Instant;

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(_: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the caller's promise.
    unsafe { *time = libc::timespec { tv_sec: 1000, tv_nsec: 0 } };
    0
}

#[test]
fn a_registration_over_the_cap_ends() {
    let (start, domain) =
        (Instant::now(), Domain::builder().cap(Cap { bytes: 0, callbacks: 0 }).build().unwrap());
    thread::scope(|scope| {
        let guard = domain.read_lock();
        // Another thread: one inside a section does not wait.
        scope.spawn(|| (0..100).for_each(|_| domain.defer(|| ()))).join().unwrap();
        drop(guard);
    });
    assert!(domain.stats().over_cap > 0);
    domain.barrier().unwrap();
    assert_eq!(start, Instant::now(), "the C library's clock does not stand still");
}
