// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times until which functions wait.

use libc::{clockid_t, timespec};

/// Nanoseconds from now until `end` by that clock, 0 if it is over. `None`: no time at all.
///
/// # Safety
/// `end` is valid.
pub unsafe fn left(clock: clockid_t, end: *const timespec) -> Option<u64> {
    // SAFETY: the caller's promise.
    let end = unsafe { end.read() };
    if !(0..1_000_000_000).contains(&end.tv_nsec) {
        return None;
    }
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure in.
    if unsafe { libc::clock_gettime(clock, &mut now) } != 0 {
        return None;
    }
    let ns = |time: timespec| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Some((ns(end) - ns(now)).clamp(0, i128::from(u64::MAX / 2)) as u64)
}
