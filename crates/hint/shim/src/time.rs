// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times until which functions wait.

use libc::{c_void, clockid_t, timespec};
use reprieve_hint::abi::{self, End};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The `clock_gettime` by which callers know the times that they wait for, if that is another
/// library's; null: the kernel's.
pub struct Clock(AtomicPtr<c_void>);

/// The clocks of times to wait for a lock, and for a condition.
pub static LOCKS: Clock = Clock(AtomicPtr::new(null_mut()));
pub static CONDITIONS: Clock = Clock(AtomicPtr::new(null_mut()));

impl Clock {
    /// At load time.
    pub fn set(&self, clock: *mut c_void) {
        self.0.store(clock, Ordering::Relaxed);
    }

    /// How much later it is by the kernel's clock of that number.
    fn late(&self, clock: clockid_t) -> i128 {
        type Function = unsafe extern "C" fn(clockid_t, *mut timespec) -> libc::c_int;
        let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
        let function = self.0.load(Ordering::Relaxed);
        // SAFETY: null or such a function, which fills in the time.
        let known = unsafe {
            std::mem::transmute::<*mut c_void, Option<Function>>(function)
                .is_some_and(|function| function(clock, &mut time) == 0)
        };
        if known { i128::from(abi::now(clock)) - in_ns(&time) } else { 0 }
    }

    /// `end` by that clock. `None`: no time at all, or a clock that nobody waits by.
    ///
    /// # Safety
    /// `end` is valid.
    pub unsafe fn until(&self, clock: clockid_t, end: *const timespec) -> Option<End> {
        // SAFETY: the caller's promise.
        let end = unsafe { end.read() };
        if !(0..1_000_000_000).contains(&end.tv_nsec) {
            return None;
        }
        let ns = (in_ns(&end) + self.late(clock)).clamp(0, i128::from(u64::MAX)) as u64;
        match clock {
            libc::CLOCK_MONOTONIC => Some(End::Monotonic(ns)),
            libc::CLOCK_REALTIME => Some(End::TimeOfDay(ns)),
            _ => None,
        }
    }
}

fn in_ns(time: &timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}
