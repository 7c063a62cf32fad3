// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times until which functions wait.

use libc::{clockid_t, timespec};
use reprieve_hint::abi::End;

/// `end` by that clock. `None`: no time at all, or a clock that nobody waits by.
///
/// # Safety
/// `end` is valid.
pub unsafe fn until(clock: clockid_t, end: *const timespec) -> Option<End> {
    // SAFETY: the caller's promise.
    let end = unsafe { end.read() };
    if !(0..1_000_000_000).contains(&end.tv_nsec) {
        return None;
    }
    let ns = i128::from(end.tv_sec) * 1_000_000_000 + i128::from(end.tv_nsec);
    let ns = ns.clamp(0, i128::from(u64::MAX)) as u64;
    match clock {
        libc::CLOCK_MONOTONIC => Some(End::Monotonic(ns)),
        libc::CLOCK_REALTIME => Some(End::TimeOfDay(ns)),
        _ => None,
    }
}
