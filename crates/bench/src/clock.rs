// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks: the time, and the CPU time that this thread has used. Time that others had the CPU is not in the second, so a busy machine
//! disturbs it less.

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds since some fixed moment.
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CPU time of this thread, in nanoseconds.
pub fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the whole process, in nanoseconds.
pub fn process_cpu() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}
