// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader-writer locks.

use crate::next::{replaces, taken};
use crate::{layout, time};
use libc::{EBUSY, EDEADLK, EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_rwlock_t, timespec};
use reprieve_hint::abi::{Prefer, ReadWrite};

type Lock = *mut pthread_rwlock_t;
type End = *const timespec;

/// The lock, and who goes first.
fn ours<'a>(lock: Lock) -> Option<(&'a ReadWrite, Prefer)> {
    // SAFETY: a valid lock, by the promise of our callers, in whose first words ours lies.
    layout::read_write(lock).map(|prefer| (unsafe { &*lock.cast::<ReadWrite>() }, prefer))
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

/// # Safety
/// `end` is valid.
unsafe fn read_until(lock: &ReadWrite, prefer: Prefer, clock: clockid_t, end: End) -> c_int {
    // SAFETY: the caller's promise.
    read_now(lock, prefer).unwrap_or_else(|| match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => taken(lock.read(prefer, end), ETIMEDOUT),
    })
}

/// # Safety
/// `end` is valid.
unsafe fn write_until(lock: &ReadWrite, prefer: Prefer, clock: clockid_t, end: End) -> c_int {
    // SAFETY: the caller's promise.
    write_now(lock).unwrap_or_else(|| match unsafe { time::LOCKS.until(clock, end) } {
        None => EINVAL,
        end => taken(lock.write(prefer, end), ETIMEDOUT),
    })
}

replaces! {
    pthread_rwlock_rdlock(lock: Lock) |(lock, prefer)| {
        read_now(lock, prefer).unwrap_or_else(|| taken(lock.read(prefer, None), ETIMEDOUT))
    };
    pthread_rwlock_tryrdlock(lock: Lock) |(lock, prefer)| taken(lock.try_read(prefer), EBUSY);
    pthread_rwlock_timedrdlock(lock: Lock, end: End) |(lock, prefer)| {
        read_until(lock, prefer, libc::CLOCK_REALTIME, end)
    };
    pthread_rwlock_clockrdlock(lock: Lock, clock: clockid_t, end: End) |(lock, prefer)| {
        read_until(lock, prefer, clock, end)
    };
    pthread_rwlock_wrlock(lock: Lock) |(lock, prefer)| {
        write_now(lock).unwrap_or_else(|| taken(lock.write(prefer, None), ETIMEDOUT))
    };
    pthread_rwlock_trywrlock(lock: Lock) |(lock, _)| taken(lock.try_write(), EBUSY);
    pthread_rwlock_timedwrlock(lock: Lock, end: End) |(lock, prefer)| {
        write_until(lock, prefer, libc::CLOCK_REALTIME, end)
    };
    pthread_rwlock_clockwrlock(lock: Lock, clock: clockid_t, end: End) |(lock, prefer)| {
        write_until(lock, prefer, clock, end)
    };
    pthread_rwlock_unlock(lock: Lock) |(_, prefer)| {
        ReadWrite::unlock(lock.cast(), prefer);
        0
    };
}
