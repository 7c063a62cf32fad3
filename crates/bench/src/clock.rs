// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks: the time, and the CPU time that this thread or process has used. CPU time does not
//! include the time in which others had the CPU, so a busy machine disturbs it less.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds since some fixed moment.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// CPU time of this thread, in nanoseconds.
pub fn thread_cpu() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of the whole process, in nanoseconds.
pub fn process_cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}
