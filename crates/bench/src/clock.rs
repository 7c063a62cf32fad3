// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks: the time, and the CPU time that this thread has used. CPU time does not include the time
//! in which others had the CPU, so a busy machine disturbs it less.

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

/// The clock of this thread's CPU time, which other threads of the program can read with
/// [`cpu_of`] as long as this one lives.
pub fn of_this_thread() -> libc::clockid_t {
    let mut clock = libc::CLOCK_THREAD_CPUTIME_ID;
    // SAFETY: this thread lives; writes the clock only.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    clock
}

/// CPU time of another thread, in nanoseconds, by its clock.
pub fn cpu_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time only.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
