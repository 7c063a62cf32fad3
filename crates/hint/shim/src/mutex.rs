// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mutexes.

use crate::next::{next, replaces, taken};
use crate::{layout, time};
use libc::{EBUSY, EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_mutex_t, timespec};
use reprieve_hint::abi::Mutex;

type Lock = *mut pthread_mutex_t;
type End = *const timespec;

fn ours<'a>(lock: Lock) -> Option<&'a Mutex> {
    // SAFETY: a valid mutex, by the promise of our callers, in whose first words ours lies.
    layout::mutex(lock).then(|| unsafe { &*lock.cast::<Mutex>() })
}

replaces! {
    pthread_mutex_lock(lock: Lock) |mutex| {
        mutex.lock(None);
        0
    };
    pthread_mutex_trylock(lock: Lock) |mutex| taken(mutex.try_lock(), EBUSY);
    pthread_mutex_timedlock(lock: Lock, end: End) |mutex| until(mutex, libc::CLOCK_REALTIME, end);
    pthread_mutex_clocklock(lock: Lock, clock: clockid_t, end: End) |mutex| {
        until(mutex, clock, end)
    };
    pthread_mutex_unlock(lock: Lock) |_| {
        Mutex::unlock(lock.cast());
        0
    };
}

/// # Safety
/// `end` is valid.
unsafe fn until(mutex: &Mutex, clock: clockid_t, end: End) -> c_int {
    if mutex.try_lock() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => taken(mutex.lock(end), ETIMEDOUT),
    }
}

/// The C library refuses if its count of users, where we have something else, is not 0.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_destroy(lock: Lock) -> c_int {
    if ours(lock).is_some_and(|mutex| !mutex.destroy()) {
        return EBUSY;
    }
    next!(pthread_mutex_destroy(lock => Lock))
}
