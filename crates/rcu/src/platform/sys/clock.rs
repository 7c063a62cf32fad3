// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks, and sleeping by them.

use std::time::Duration;

pub(super) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        // The kernel refuses a time that it reads as negative, and the caller would not sleep.
        tv_sec: time.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

/// A moment of the kernel's monotonic clock. The standard library's `Instant` asks `clock_gettime`,
/// which programs and preloaded libraries replace: with a clock that stands still, no wait with a
/// time limit would end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(monotonic())
    }

    /// Zero if `earlier` is the later moment.
    pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

pub(crate) fn monotonic() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_MONOTONIC).unwrap_or(0))
}

/// The C library's monotonic clock, which makes no system call. For statistics: they may be those
/// of a replaced clock.
pub(crate) fn monotonic_for_statistics() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Nanoseconds since boot, time asleep included: the clock that the kernel stamps the start of
/// threads with.
#[cfg(target_os = "linux")]
pub(crate) fn since_boot() -> u64 {
    clock(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

/// CPU time of a thread of this process, in nanoseconds, exact to the moment even if it is running.
/// `None` if there is none of this id.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time(thread: u32) -> Option<u64> {
    // The kernel's CPUCLOCK_SCHED (2) and CPUCLOCK_PERTHREAD_MASK (4), as pthread_getcpuclockid
    // makes it.
    clock(!(thread as libc::clockid_t) << 3 | 6)
}

/// CPU time of this thread.
pub(crate) fn own_cpu_time() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0))
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    let result = unsafe { libc::syscall(libc::SYS_clock_gettime, id, &raw mut now) };
    // SAFETY: as above.
    #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
    let result = unsafe { libc::clock_gettime(id, &mut now) };
    (result == 0).then(|| now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(target_os = "linux")]
pub(crate) fn sleep(time: Duration) {
    let time = timespec(time);
    // Not the C library's function, which is a cancellation point (pthread_cancel): the leader of a
    // grace period would end with its lock held. An early return by a signal is harmless: callers
    // look again.
    // SAFETY: `time` outlives the call.
    unsafe {
        libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>())
    };
}
