// SPDX-License-Identifier: MIT OR Apache-2.0
//! Condition variables.

use crate::mutex::{pthread_mutex_lock, pthread_mutex_unlock};
use crate::next::next;
use crate::{layout, time};
use libc::{
    EINVAL, EPERM, ETIMEDOUT, c_int, clockid_t, pthread_cond_t, pthread_condattr_t,
    pthread_mutex_t, timespec,
};
use reprieve_hint::abi::Condition;
use std::sync::atomic::Ordering;
use std::time::Duration;

type Cond = *mut pthread_cond_t;
type Mutex = *mut pthread_mutex_t;
type End = *const timespec;

fn ours<'a>(condition: Cond) -> Option<&'a Condition> {
    // SAFETY: a valid condition, by the promise of our callers, in whose first words ours lies.
    layout::condition(condition).then(|| unsafe { &*condition.cast::<Condition>() })
}

pub fn real_init(condition: Cond, attr: *const pthread_condattr_t) -> c_int {
    next!(c"pthread_cond_init"(condition => Cond, attr => *const pthread_condattr_t))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_init(
    condition: Cond,
    attr: *const pthread_condattr_t,
) -> c_int {
    let result = real_init(condition, attr);
    let Some(ours) = ours(condition).filter(|_| result == 0) else { return result };
    let mut clock = libc::CLOCK_REALTIME;
    if !attr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { libc::pthread_condattr_getclock(attr, &mut clock) };
    }
    // SAFETY: the caller's, which nobody uses yet. The C library's idea of it is gone.
    unsafe { condition.write_bytes(0, 1) };
    ours.clock.store(clock as u32, Ordering::Relaxed);
    0
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_destroy(condition: Cond) -> c_int {
    match ours(condition) {
        Some(condition) => {
            condition.destroy();
            0
        }
        None => next!(c"pthread_cond_destroy"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: Cond) -> c_int {
    match ours(condition) {
        Some(condition) => {
            condition.signal(1);
            0
        }
        None => next!(c"pthread_cond_signal"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: Cond) -> c_int {
    match ours(condition) {
        Some(condition) => {
            condition.signal(i32::MAX);
            0
        }
        None => next!(c"pthread_cond_broadcast"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_wait(condition: Cond, mutex: Mutex) -> c_int {
    match ours(condition) {
        // SAFETY: the caller holds the mutex.
        Some(condition) => unsafe { wait(condition, mutex, None) },
        // SAFETY: the caller holds the mutex.
        None if layout::mutex(mutex) => unsafe { poll(mutex, None) },
        None => next!(c"pthread_cond_wait"(condition => Cond, mutex => Mutex)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_timedwait(condition: Cond, mutex: Mutex, end: End) -> c_int {
    match ours(condition) {
        Some(condition) => {
            let clock = condition.clock.load(Ordering::Relaxed) as clockid_t;
            // SAFETY: the caller holds the mutex, and the time is valid.
            unsafe { wait(condition, mutex, Some((clock, end))) }
        }
        // SAFETY: the caller holds the mutex, and the time is valid.
        None if layout::mutex(mutex) => unsafe {
            poll(mutex, Some((layout::clock(condition), end)))
        },
        None => next!(c"pthread_cond_timedwait"(condition => Cond, mutex => Mutex, end => End)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_clockwait(
    condition: Cond,
    mutex: Mutex,
    clock: clockid_t,
    end: End,
) -> c_int {
    match ours(condition) {
        // SAFETY: the caller holds the mutex, and the time is valid.
        Some(condition) => unsafe { wait(condition, mutex, Some((clock, end))) },
        // SAFETY: as above.
        None if layout::mutex(mutex) => unsafe { poll(mutex, Some((clock, end))) },
        None => next!(c"pthread_cond_clockwait"(
            condition => Cond, mutex => Mutex, clock => clockid_t, end => End)),
    }
}

/// # Safety
/// The caller holds the mutex, unless that is of a kind that finds out; the time is valid. The
/// condition may be gone when the thread has left it.
unsafe fn wait(condition: *const Condition, mutex: Mutex, end: Option<(clockid_t, End)>) -> c_int {
    // SAFETY: the caller's promise.
    let left = end.map(|(clock, end)| unsafe { time::left(clock, end) });
    if left == Some(None) {
        return EINVAL;
    }
    // Without the mutex the thread must not enter.
    if !layout::mutex(mutex) && layout::refuses(mutex) {
        return EPERM;
    }
    // SAFETY: the caller's promise. The mutex may be one of the C library's.
    let (before, unlocked) = unsafe { ((*condition).enter(), pthread_mutex_unlock(mutex)) };
    if unlocked != 0 {
        // SAFETY: entered above.
        unsafe { Condition::leave(condition) };
        return unlocked;
    }
    // SAFETY: entered above.
    let in_time =
        unsafe { Condition::sleep(condition, before, left.flatten().map(Duration::from_nanos)) };
    // SAFETY: the caller's promise.
    let locked = unsafe { pthread_mutex_lock(mutex) };
    if locked != 0 {
        return locked;
    }
    if in_time { 0 } else { ETIMEDOUT }
}

/// Waits for a condition of the C library's, which knows the inside of its mutexes, with a mutex of
/// ours: wakes up again and again without a signal, as POSIX allows.
///
/// # Safety
/// The caller holds the mutex; the time is valid.
unsafe fn poll(mutex: Mutex, end: Option<(clockid_t, End)>) -> c_int {
    const STEP: u64 = 1_000_000;
    // SAFETY: the caller's promise.
    let left = || end.map(|(clock, end)| unsafe { time::left(clock, end) });
    let first = left();
    if first == Some(None) {
        return EINVAL;
    }
    let step = Duration::from_nanos(first.flatten().map_or(STEP, |left| left.min(STEP)));
    // SAFETY: all zeros are a condition, which nobody else knows; the caller holds the mutex, which
    // is ours.
    unsafe {
        let nobody = std::mem::zeroed::<Condition>();
        let before = nobody.enter();
        pthread_mutex_unlock(mutex);
        Condition::sleep(&nobody, before, Some(step));
        pthread_mutex_lock(mutex);
    }
    if left() == Some(Some(0)) { ETIMEDOUT } else { 0 }
}
