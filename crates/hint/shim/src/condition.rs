// SPDX-License-Identifier: MIT OR Apache-2.0
//! Condition variables: a count of signals, which threads sleep on.
//!
//! A waiter reads the count before it releases the mutex, and sleeps if the count is still the
//! same. A signal adds to the count, then wakes one sleeper. So a thread that waits when the signal
//! comes wakes up, or does not sleep. The kernel wakes the thread that has slept longest (of equal
//! priority), so a thread that comes after the signal does not take the wake-up of one that slept.
//! Bionic has used the same for years. Waiters may wake without a signal, as POSIX allows, and do
//! not touch the condition after they woke: it may be gone.

use crate::mutex::{pthread_mutex_lock, pthread_mutex_unlock};
use crate::next::next;
use crate::{layout, time};
use libc::{
    EINVAL, ETIMEDOUT, c_int, clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t,
    timespec,
};
use std::sync::atomic::{AtomicU32, Ordering};

type Cond = *mut pthread_cond_t;
type Mutex = *mut pthread_mutex_t;
type End = *const timespec;

#[repr(C)]
struct Condition {
    signals: AtomicU32,
    /// The clock of timed waits, 0 being the usual one.
    clock: AtomicU32,
}

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
        Some(_) => 0,
        None => next!(c"pthread_cond_destroy"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_signal(condition: Cond) -> c_int {
    match ours(condition) {
        Some(condition) => condition.signal(1),
        None => next!(c"pthread_cond_signal"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_broadcast(condition: Cond) -> c_int {
    match ours(condition) {
        Some(condition) => condition.signal(i32::MAX),
        None => next!(c"pthread_cond_broadcast"(condition => Cond)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_wait(condition: Cond, mutex: Mutex) -> c_int {
    match ours(condition) {
        // SAFETY: the caller holds the mutex.
        Some(condition) => unsafe { condition.wait(mutex, None) },
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
            unsafe { condition.wait(mutex, Some((clock, end))) }
        }
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
        Some(condition) => unsafe { condition.wait(mutex, Some((clock, end))) },
        None => next!(c"pthread_cond_clockwait"(
            condition => Cond, mutex => Mutex, clock => clockid_t, end => End)),
    }
}

impl Condition {
    fn signal(&self, threads: i32) -> c_int {
        self.signals.fetch_add(1, Ordering::SeqCst);
        futex(self.signals.as_ptr(), libc::FUTEX_WAKE, threads as u32, None);
        0
    }

    /// # Safety
    /// The caller holds the mutex; the time is valid.
    unsafe fn wait(&self, mutex: Mutex, end: Option<(clockid_t, End)>) -> c_int {
        let before = self.signals.load(Ordering::SeqCst);
        // SAFETY: the caller's promise.
        let left = end.map(|(clock, end)| unsafe { time::left(clock, end) });
        if left == Some(None) {
            return EINVAL;
        }
        // SAFETY: the caller's promise. The mutex may be one of the C library's.
        let unlocked = unsafe { pthread_mutex_unlock(mutex) };
        if unlocked != 0 {
            return unlocked;
        }
        let over = futex(self.signals.as_ptr(), libc::FUTEX_WAIT, before, left.flatten());
        // SAFETY: the caller's promise.
        let locked = unsafe { pthread_mutex_lock(mutex) };
        if locked != 0 {
            return locked;
        }
        if over { ETIMEDOUT } else { 0 }
    }
}

/// Whether the time is over. errno stays as it was.
fn futex(word: *mut u32, op: c_int, value: u32, left: Option<u64>) -> bool {
    let limit = left.map(|ns| timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is the condition's, or was when it was signalled; errno's location is this
    // thread's own.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let op = op | libc::FUTEX_PRIVATE_FLAG;
        let result = libc::syscall(libc::SYS_futex, word, op, value, limit);
        let over = result != 0 && *errno == ETIMEDOUT;
        *errno = before;
        over
    }
}
