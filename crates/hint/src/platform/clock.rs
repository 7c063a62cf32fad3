// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks. errno stays as it was: C programs lock mutexes between a call and its errno.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Runs `f` and restores errno.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: errno's location is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = f();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

type ClockGetTime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;

/// In place of the C library's function, which another library may replace: the kernel's own.
static KERNEL_CLOCK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has times come from the kernel's function `clock_gettime` (of its vDSO).
///
/// # Safety
/// It is one.
pub(crate) unsafe fn set(kernels: *mut c_void) {
    KERNEL_CLOCK.store(kernels, Ordering::Relaxed);
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let kernels = KERNEL_CLOCK.load(Ordering::Relaxed);
    // SAFETY: null or such a function, by the promise to [`set`]; it fills the structure in.
    let result = keep_errno(|| unsafe {
        match std::mem::transmute::<*mut c_void, Option<ClockGetTime>>(kernels) {
            Some(kernels) => kernels(id, &mut time),
            None => libc::clock_gettime(id, &mut time),
        }
    });
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Monotonic time in ns.
#[inline]
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// The time of day in ns since 1970.
pub(crate) fn time_of_day() -> u64 {
    clock(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// The CPU time of another thread of this process, in ns. `None`: there is no such thread.
pub(crate) fn cpu_time(thread: u32) -> Option<u64> {
    /// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of the kernel's interface.
    const PER_THREAD: i32 = 6;
    if thread == 0 {
        return None;
    }
    clock((!(thread as i32) << 3) | PER_THREAD)
}
