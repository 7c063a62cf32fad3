// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clocks of snapshots and events. eBPF's own is CLOCK_MONOTONIC too.

use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// CLOCK_MONOTONIC, ns.
pub fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// CPU time of this process, ns.
pub fn process_ns() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// CPU time of this thread, ns.
pub fn thread_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// Nanoseconds since 1970.
pub fn wall_ns() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
