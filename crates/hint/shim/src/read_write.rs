// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader-writer locks.

use crate::next::next;
use crate::{layout, time};
use libc::{EBUSY, EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_rwlock_t, timespec};
use reprieve_hint::abi::ReadWrite;

/// The lock, and whether writers go first.
fn ours<'a>(lock: *mut pthread_rwlock_t) -> Option<(&'a ReadWrite, bool)> {
    // SAFETY: a valid lock, by the promise of our callers, in whose first words ours lies.
    layout::read_write(lock).map(|writers| (unsafe { &*lock.cast::<ReadWrite>() }, writers))
}

fn taken(taken: bool, otherwise: c_int) -> c_int {
    if taken { 0 } else { otherwise }
}

type Lock = *mut pthread_rwlock_t;
type End = *const timespec;

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_rdlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, writers)) => taken(lock.read(writers, None), ETIMEDOUT),
        None => next!(c"pthread_rwlock_rdlock"(lock => Lock)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_tryrdlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, writers)) => taken(lock.try_read(writers), EBUSY),
        None => next!(c"pthread_rwlock_tryrdlock"(lock => Lock)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedrdlock(lock: Lock, end: End) -> c_int {
    match ours(lock) {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { pthread_rwlock_clockrdlock(lock, libc::CLOCK_REALTIME, end) },
        None => next!(c"pthread_rwlock_timedrdlock"(lock => Lock, end => End)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockrdlock(
    lock: Lock,
    clock: clockid_t,
    end: End,
) -> c_int {
    let Some((ours, writers)) = ours(lock) else {
        return next!(c"pthread_rwlock_clockrdlock"(lock => Lock, clock => clockid_t, end => End));
    };
    if ours.try_read(writers) {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::left(clock, end) } {
        None => EINVAL,
        left => taken(ours.read(writers, left), ETIMEDOUT),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_wrlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, _)) => taken(lock.write(None), ETIMEDOUT),
        None => next!(c"pthread_rwlock_wrlock"(lock => Lock)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_trywrlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, _)) => taken(lock.try_write(), EBUSY),
        None => next!(c"pthread_rwlock_trywrlock"(lock => Lock)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_timedwrlock(lock: Lock, end: End) -> c_int {
    match ours(lock) {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { pthread_rwlock_clockwrlock(lock, libc::CLOCK_REALTIME, end) },
        None => next!(c"pthread_rwlock_timedwrlock"(lock => Lock, end => End)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_clockwrlock(
    lock: Lock,
    clock: clockid_t,
    end: End,
) -> c_int {
    let Some((ours, _)) = ours(lock) else {
        return next!(c"pthread_rwlock_clockwrlock"(lock => Lock, clock => clockid_t, end => End));
    };
    if ours.try_write() {
        return 0;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::left(clock, end) } {
        None => EINVAL,
        left => taken(ours.write(left), ETIMEDOUT),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_unlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, writers)) => {
            // SAFETY: the caller holds it.
            unsafe { lock.unlock(writers) };
            0
        }
        None => next!(c"pthread_rwlock_unlock"(lock => Lock)),
    }
}
