// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clocks of snapshots and events. eBPF's own is CLOCK_MONOTONIC too.

use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of this process, ns.
pub fn process_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is written. These clocks always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
