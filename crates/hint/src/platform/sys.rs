// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. None allocates, and errno stays as it was: C programs lock mutexes between a call
//! and its errno.

use super::end::End;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

/// Runs `f` and restores errno.
pub(crate) fn keep_errno<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: errno's location is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = f();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// `membarrier(command, 0, 0)`: the result, or -1.
pub(crate) fn membarrier(command: i32) -> i64 {
    // SAFETY: membarrier reads no memory of ours.
    keep_errno(|| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

/// Has the kernel clear these whole pages in children, if it can.
pub(crate) fn wipe_on_fork(at: *const u8, bytes: usize) {
    // SAFETY: no preconditions.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize == bytes {
        // SAFETY: changes nothing of this process's memory.
        keep_errno(|| unsafe { libc::madvise(at.cast_mut().cast(), bytes, libc::MADV_WIPEONFORK) });
    }
}

/// Memory for so many of `T`, for good. Not by the allocator: this may be a signal handler. Ends
/// the program if there is none: a lock cannot fail.
///
/// # Safety
/// All zeros are a `T`.
pub(crate) unsafe fn zeroed<T>(count: usize) -> &'static [T] {
    let bytes = count * size_of::<T>();
    // SAFETY: a new mapping, aligned to pages and cleared, that is never unmapped.
    unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = keep_errno(|| libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0));
        if at == libc::MAP_FAILED {
            libc::abort();
        }
        std::slice::from_raw_parts(at.cast(), count)
    }
}

/// Sleeps while `*word == expected`, at most `time`. False if the time is over.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, time: Option<Duration>) -> bool {
    futex_wait_by(libc::FUTEX_WAIT, word, expected, time)
}

/// The same until `end`. The kernel knows when the clock is set.
pub(crate) fn futex_wait_until(word: &AtomicU32, expected: u32, end: Option<End>) -> bool {
    let (by, ns) = match end {
        None => (0, None),
        Some(End::Monotonic(ns)) => (0, Some(ns)),
        Some(End::TimeOfDay(ns)) => (libc::FUTEX_CLOCK_REALTIME, Some(ns)),
    };
    let time = ns.map(Duration::from_nanos);
    futex_wait_by(libc::FUTEX_WAIT_BITSET | by, word, expected, time)
}

fn futex_wait_by(op: i32, word: &AtomicU32, expected: u32, time: Option<Duration>) -> bool {
    let limit = time.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: t.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    keep_errno(|| {
        // SAFETY: the word outlives the call; the limit is a valid timespec or null.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                op | libc::FUTEX_PRIVATE_FLAG,
                expected,
                limit,
                std::ptr::null::<u32>(),
                libc::FUTEX_BITSET_MATCH_ANY,
            )
        };
        // SAFETY: errno's location is this thread's own.
        result == 0 || unsafe { *libc::__errno_location() } != libc::ETIMEDOUT
    })
}

/// Wakes at most that many threads that wait on `word`. Whether there was one.
pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) -> bool {
    futex_wake_at(word.as_ptr(), threads)
}

/// The same by address. The memory may belong to somebody else by now, who then sees a wake-up
/// without a reason.
pub(crate) fn futex_wake_at(word: *const u32, threads: i32) -> bool {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a private futex is woken by its address; the kernel does not read the memory.
    keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word, op, threads) }) > 0
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure in.
    let failed = keep_errno(|| unsafe { libc::clock_gettime(id, &mut time) }) != 0;
    (!failed).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Monotonic time in ns.
#[inline]
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// The time of day in ns since 1970.
pub(crate) fn time_of_day() -> u64 {
    clock(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// The CPU time of another thread of this process, in ns. `None`: there is no such thread.
pub(crate) fn cpu_time(thread: u32) -> Option<u64> {
    /// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED` of the kernel's interface.
    const PER_THREAD: i32 = 6;
    if thread == 0 {
        return None;
    }
    clock((!(thread as i32) << 3) | PER_THREAD)
}

/// This thread's number in the kernel, by the bare system call: the C library may not know it yet
/// in the child of a fork.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether a thread of any process exists, with that number in this process's PID namespace.
pub(crate) fn is_anywhere(thread: u32) -> bool {
    let Ok(thread) = i32::try_from(thread) else { return false };
    // SAFETY: signal 0 only asks.
    let failed = keep_errno(|| unsafe {
        if libc::kill(thread, 0) == 0 { 0 } else { *libc::__errno_location() }
    });
    failed != libc::ESRCH
}

/// Whether a thread of this process exists.
pub(crate) fn exists(thread: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let failed = keep_errno(|| unsafe {
        if libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 {
            0
        } else {
            *libc::__errno_location()
        }
    });
    failed != libc::ESRCH
}
