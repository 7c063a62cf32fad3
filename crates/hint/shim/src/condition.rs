// SPDX-License-Identifier: MIT OR Apache-2.0
//! Condition variables.
//!
//! Waiting is a cancellation point. A thread that is cancelled leaves the condition, and takes the
//! mutex again, before the program's own handlers run (`cancel.c`). They unwind the stack, so the
//! frames here have no destructors.

use crate::mutex::{pthread_mutex_lock, pthread_mutex_unlock};
use crate::next::{next, replaces};
use crate::{layout, time};
use libc::{
    EINVAL, ETIMEDOUT, c_int, c_long, c_uint, c_void, clockid_t, pthread_cond_t,
    pthread_condattr_t, pthread_mutex_t, timespec,
};
use reprieve_hint::abi::{self, Condition};
use std::sync::atomic::Ordering;

unsafe extern "C-unwind" {
    safe fn pthread_testcancel();
    fn reprieve_locks_wait(
        word: *const u32,
        op: c_int,
        expected: c_uint,
        end: End,
        cancelled: unsafe extern "C" fn(*mut c_void),
        of: *mut c_void,
    ) -> c_long;
}

type Cond = *mut pthread_cond_t;
type Mutex = *mut pthread_mutex_t;
type End = *const timespec;

fn ours<'a>(condition: Cond) -> Option<&'a Condition> {
    // SAFETY: a valid condition, by the promise of our callers, in whose first words ours lies.
    layout::condition(condition).then(|| unsafe { &*condition.cast::<Condition>() })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_cond_init(
    condition: Cond,
    attr: *const pthread_condattr_t,
) -> c_int {
    let result = layout::real_init(condition, attr);
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

replaces! {
    pthread_cond_destroy(condition: Cond) |condition| {
        condition.destroy();
        0
    };
    pthread_cond_signal(condition: Cond) |condition| {
        condition.signal(1);
        0
    };
    pthread_cond_broadcast(condition: Cond) |condition| {
        condition.signal(i32::MAX);
        0
    };
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_wait(condition: Cond, mutex: Mutex) -> c_int {
    // SAFETY: the caller holds the mutex.
    match unsafe { wait_here(condition, mutex, |_| None) } {
        Some(result) => result,
        None => next!("C-unwind", pthread_cond_wait(condition => Cond, mutex => Mutex)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_timedwait(
    condition: Cond,
    mutex: Mutex,
    end: End,
) -> c_int {
    // SAFETY: the caller holds the mutex, and the time is valid.
    match unsafe { wait_here(condition, mutex, |clock| Some((clock, end))) } {
        Some(result) => result,
        None => next!("C-unwind", pthread_cond_timedwait(
            condition => Cond, mutex => Mutex, end => End)),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cond_clockwait(
    condition: Cond,
    mutex: Mutex,
    clock: clockid_t,
    end: End,
) -> c_int {
    // SAFETY: as above.
    match unsafe { wait_here(condition, mutex, |_| Some((clock, end))) } {
        Some(result) => result,
        None => next!("C-unwind", pthread_cond_clockwait(
            condition => Cond, mutex => Mutex, clock => clockid_t, end => End)),
    }
}

/// Waits, if the condition or the mutex is ours. `end` is told the condition's clock.
///
/// # Safety
/// The caller holds the mutex; the time is valid.
unsafe fn wait_here(
    condition: Cond,
    mutex: Mutex,
    end: impl FnOnce(clockid_t) -> Option<(clockid_t, End)>,
) -> Option<c_int> {
    pthread_testcancel();
    // SAFETY: the caller's promise.
    unsafe {
        match ours(condition) {
            Some(ours) => {
                let clock = ours.clock.load(Ordering::Relaxed) as clockid_t;
                Some(wait(ours, mutex, end(clock)))
            }
            None if layout::mutex(mutex) => Some(poll(mutex, end(layout::clock(condition)))),
            None => None,
        }
    }
}

/// # Safety
/// The caller holds the mutex; the time is valid. The condition may be gone when the thread has
/// left it.
unsafe fn wait(condition: *const Condition, mutex: Mutex, end: Option<(clockid_t, End)>) -> c_int {
    // SAFETY: the caller's promise.
    let end = match end.map(|(clock, end)| unsafe { time::CONDITIONS.until(clock, end) }) {
        Some(None) => return EINVAL,
        end => end.flatten(),
    };
    // SAFETY: the caller's promise. The mutex may be one of the C library's.
    let (entered, unlocked) = unsafe { ((*condition).enter(), pthread_mutex_unlock(mutex)) };
    if unlocked != 0 {
        // One of the C library's, which finds out that the caller does not hold it.
        // SAFETY: entered above.
        unsafe { Condition::leave(condition) };
        return unlocked;
    }
    let wait = Wait { condition, mutex };
    // SAFETY: entered above.
    let in_time = unsafe { wait.sleep(entered, end) };
    // SAFETY: as above; the mutex is the caller's promise.
    let locked = unsafe { wait.end() };
    if locked != 0 {
        return locked;
    }
    if in_time { 0 } else { ETIMEDOUT }
}

/// A thread that has entered the condition, and released the mutex.
struct Wait {
    condition: *const Condition,
    mutex: Mutex,
}

impl Wait {
    /// False if the time is over. If the thread is cancelled, this does not return.
    ///
    /// # Safety
    /// As [`Condition::sleep`].
    unsafe fn sleep(&self, entered: u32, end: Option<abi::End>) -> bool {
        let (op, limit) = abi::End::for_futex(end);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let this = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the word is valid until the thread leaves; the limit is a valid time or null.
        let result = unsafe {
            let word = (*self.condition).word();
            reprieve_locks_wait(word, op, entered, limit, Wait::cancelled, this)
        };
        result != -c_long::from(ETIMEDOUT)
    }

    /// Leaves the condition, and takes the mutex.
    ///
    /// # Safety
    /// As [`Condition::leave`].
    unsafe fn end(&self) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            Condition::leave(self.condition);
            pthread_mutex_lock(self.mutex)
        }
    }

    unsafe extern "C" fn cancelled(this: *mut c_void) {
        // SAFETY: that of `sleep`, on the stack of this thread.
        let this = unsafe { &*this.cast::<Wait>() };
        // SAFETY: the thread has entered, and the mutex is the caller's promise.
        unsafe {
            // The thread may have been woken by a signal that another thread would miss.
            (*this.condition).signal(1);
            this.end();
        }
    }
}

/// Waits for a condition of the C library's, which knows the inside of its mutexes, with a mutex of
/// ours: wakes up again and again without a signal, as POSIX allows.
///
/// # Safety
/// The caller holds the mutex; the time is valid.
unsafe fn poll(mutex: Mutex, end: Option<(clockid_t, End)>) -> c_int {
    // SAFETY: the caller's promise.
    let end = match end.map(|(clock, end)| unsafe { time::CONDITIONS.until(clock, end) }) {
        Some(None) => return EINVAL,
        end => end.flatten(),
    };
    let nap = abi::End::after(end.map_or(Condition::NAP, |end| end.left().min(Condition::NAP)));
    // SAFETY: all zeros are a condition, which nobody else knows; the caller holds the mutex, which
    // is ours.
    unsafe {
        let nobody = std::mem::zeroed::<Condition>();
        let entered = nobody.enter();
        pthread_mutex_unlock(mutex);
        Condition::sleep(&nobody, entered, Some(nap));
        pthread_mutex_lock(mutex);
    }
    pthread_testcancel();
    if end.is_some_and(|end| end.left().is_zero()) { ETIMEDOUT } else { 0 }
}
