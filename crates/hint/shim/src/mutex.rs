// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutexes.

use crate::next::next;
use crate::{layout, time};
use libc::{EBUSY, EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_mutex_t, timespec};
use reprieve_hint::abi::Mutex;

fn ours<'a>(mutex: *mut pthread_mutex_t) -> Option<&'a Mutex> {
    // SAFETY: a valid mutex, by the promise of our callers, in whose first words ours lies.
    layout::mutex(mutex).then(|| unsafe { &*mutex.cast::<Mutex>() })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    match ours(mutex) {
        Some(mutex) => {
            mutex.lock(None);
            0
        }
        None => next!(c"pthread_mutex_lock"(mutex => *mut pthread_mutex_t)),
    }
}

/// The C library refuses if its count of users, where we have something else, is not 0.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(mutex: *mut pthread_mutex_t) -> c_int {
    if ours(mutex).is_some_and(|mutex| !mutex.destroy()) {
        return EBUSY;
    }
    next!(c"pthread_mutex_destroy"(mutex => *mut pthread_mutex_t))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int {
    match ours(mutex) {
        Some(mutex) => {
            if mutex.try_lock() {
                0
            } else {
                EBUSY
            }
        }
        None => next!(c"pthread_mutex_trylock"(mutex => *mut pthread_mutex_t)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_timedlock(
    mutex: *mut pthread_mutex_t,
    end: *const timespec,
) -> c_int {
    match ours(mutex) {
        // SAFETY: the caller's promise.
        Some(mutex) => unsafe { until(mutex, libc::CLOCK_REALTIME, end) },
        None => {
            next!(c"pthread_mutex_timedlock"(mutex => *mut pthread_mutex_t, end => *const timespec))
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    end: *const timespec,
) -> c_int {
    match ours(mutex) {
        // SAFETY: the caller's promise.
        Some(mutex) => unsafe { until(mutex, clock, end) },
        None => next!(c"pthread_mutex_clocklock"(
            mutex => *mut pthread_mutex_t, clock => clockid_t, end => *const timespec)),
    }
}

/// # Safety
/// `end` is valid.
unsafe fn until(mutex: &Mutex, clock: clockid_t, end: *const timespec) -> c_int {
    if mutex.try_lock() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => {
            if mutex.lock(end) {
                0
            } else {
                ETIMEDOUT
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    if layout::mutex(mutex) {
        // SAFETY: a valid mutex that the caller holds.
        unsafe { Mutex::unlock(mutex.cast()) };
        return 0;
    }
    next!(c"pthread_mutex_unlock"(mutex => *mut pthread_mutex_t))
}
