// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader-writer locks.

use crate::next::next;
use crate::{layout, time};
use libc::{EBUSY, EDEADLK, EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_rwlock_t, timespec};
use reprieve_hint::abi::{Prefer, ReadWrite};

/// The lock, and who goes first.
fn ours<'a>(lock: *mut pthread_rwlock_t) -> Option<(&'a ReadWrite, Prefer)> {
    // SAFETY: a valid lock, by the promise of our callers, in whose first words ours lies.
    layout::read_write(lock).map(|prefer| (unsafe { &*lock.cast::<ReadWrite>() }, prefer))
}

fn taken(taken: bool, otherwise: c_int) -> c_int {
    if taken { 0 } else { otherwise }
}

/// Reads if that needs no wait, or says that the caller would wait for itself. Where writers go
/// first, a reader may have to wait for a free lock.
#[inline]
fn read_now(lock: &ReadWrite, prefer: Prefer) -> Option<c_int> {
    if prefer != Prefer::Writers && lock.try_read(prefer) {
        return Some(0);
    }
    lock.is_written_by_caller().then_some(EDEADLK)
}

/// The same for writing.
#[inline]
fn write_now(lock: &ReadWrite) -> Option<c_int> {
    if lock.try_write() {
        return Some(0);
    }
    lock.is_written_by_caller().then_some(EDEADLK)
}

type Lock = *mut pthread_rwlock_t;
type End = *const timespec;

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_rdlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, prefer)) => {
            read_now(lock, prefer).unwrap_or_else(|| taken(lock.read(prefer, None), ETIMEDOUT))
        }
        None => next!(c"pthread_rwlock_rdlock"(lock => Lock)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_tryrdlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, prefer)) => taken(lock.try_read(prefer), EBUSY),
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
    let Some((ours, prefer)) = ours(lock) else {
        return next!(c"pthread_rwlock_clockrdlock"(lock => Lock, clock => clockid_t, end => End));
    };
    if let Some(result) = read_now(ours, prefer) {
        return result;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => taken(ours.read(prefer, end), ETIMEDOUT),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_wrlock(lock: Lock) -> c_int {
    match ours(lock) {
        Some((lock, prefer)) => {
            write_now(lock).unwrap_or_else(|| taken(lock.write(prefer, None), ETIMEDOUT))
        }
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
    let Some((ours, prefer)) = ours(lock) else {
        return next!(c"pthread_rwlock_clockwrlock"(lock => Lock, clock => clockid_t, end => End));
    };
    if let Some(result) = write_now(ours) {
        return result;
    }
    // SAFETY: the caller's promise.
    match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => taken(ours.write(prefer, end), ETIMEDOUT),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_rwlock_unlock(lock: Lock) -> c_int {
    match layout::read_write(lock) {
        Some(prefer) => {
            // SAFETY: a valid lock that the caller holds.
            unsafe { ReadWrite::unlock(lock.cast(), prefer) };
            0
        }
        None => next!(c"pthread_rwlock_unlock"(lock => Lock)),
    }
}
