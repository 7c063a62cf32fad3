// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. None allocates, and errno stays as it was: C programs lock mutexes between a call
//! and its errno.

use super::end::End;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
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

/// A system call, whatever other libraries put in front of the C library's functions: its result,
/// or the negative number of the error. No cancellation point.
///
/// # Safety
/// As the call's.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the caller's promise; the kernel changes these two registers.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise; errno's location is this thread's own.
    keep_errno(|| unsafe {
        match libc::syscall(number, a, b, c, d, e, f) {
            -1 => -(*libc::__errno_location() as isize),
            result => result as isize,
        }
    })
}

fn failed(result: isize, error: i32) -> bool {
    result == -(error as isize)
}

/// `membarrier(command, 0, 0)`: the result, or a negative number.
pub(crate) fn membarrier(command: i32) -> isize {
    // SAFETY: membarrier reads no memory of ours.
    unsafe { call(libc::SYS_membarrier, [command as usize, 0, 0, 0, 0, 0]) }
}

/// Has the kernel clear these whole pages in children and theirs, if it can.
pub(crate) fn wipe_on_fork(at: *const u8, bytes: usize) {
    // SAFETY: no preconditions.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize == bytes {
        let advice = libc::MADV_WIPEONFORK as usize;
        // SAFETY: changes nothing of this process's memory.
        unsafe { call(libc::SYS_madvise, [at.expose_provenance(), bytes, advice, 0, 0, 0]) };
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
    let (word, op) = (word.as_ptr().expose_provenance(), (op | libc::FUTEX_PRIVATE_FLAG) as usize);
    let (limit, all) = (limit.expose_provenance(), libc::FUTEX_BITSET_MATCH_ANY as u32 as usize);
    // SAFETY: the word outlives the call; the limit is a valid timespec or null.
    let result = unsafe { call(libc::SYS_futex, [word, op, expected as usize, limit, 0, all]) };
    !failed(result, libc::ETIMEDOUT)
}

/// Wakes at most that many threads that wait on `word`. Whether there was one.
pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) -> bool {
    futex_wake_at(word.as_ptr(), threads)
}

/// The same by address. The memory may belong to somebody else by now, who then sees a wake-up
/// without a reason.
pub(crate) fn futex_wake_at(word: *const u32, threads: i32) -> bool {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    let word = word.expose_provenance();
    // SAFETY: a private futex is woken by its address; the kernel does not read the memory.
    unsafe { call(libc::SYS_futex, [word, op, threads as usize, 0, 0, 0]) > 0 }
}

type ClockGetTime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;

/// In place of the C library's function, which another library may replace: the kernel's own.
static KERNEL_CLOCK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has times come from the kernel's function `clock_gettime` (of its vDSO).
///
/// # Safety
/// It is one.
pub(crate) unsafe fn set_clock(kernels: *mut c_void) {
    KERNEL_CLOCK.store(kernels, Ordering::Relaxed);
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let kernels = KERNEL_CLOCK.load(Ordering::Relaxed);
    // SAFETY: null or such a function, by the promise to `set_clock`; it fills the structure in.
    let result = keep_errno(|| unsafe {
        match std::mem::transmute::<*mut c_void, Option<ClockGetTime>>(kernels) {
            Some(kernels) => kernels(id, &mut time),
            None => libc::clock_gettime(id, &mut time),
        }
    });
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
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

/// Whether a mutex that finds out who holds it has the number of its holder in this word, by which
/// a thread knows its own without a system call.
static HOLDER_KNOWN: AtomicBool = AtomicBool::new(false);

/// Before other threads run: what would take system calls later.
pub(crate) fn find_out() {
    HOLDER_KNOWN.store(holder() == asked(), Ordering::Relaxed);
}

fn asked() -> u32 {
    // SAFETY: no preconditions.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

#[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
fn holder() -> u32 {
    const OWNER: usize = 2;
    let mut mutex = libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    // SAFETY: a mutex of this function's own, of ten words.
    unsafe {
        libc::pthread_mutex_lock(&mut mutex);
        let holder = (&raw const mutex).cast::<u32>().add(OWNER).read_volatile();
        libc::pthread_mutex_unlock(&mut mutex);
        holder
    }
}

#[cfg(not(all(target_env = "gnu", target_arch = "x86_64")))]
fn holder() -> u32 {
    0
}

/// This thread's number in the kernel.
pub(crate) fn thread_id() -> u32 {
    if HOLDER_KNOWN.load(Ordering::Relaxed) { holder() } else { asked() }
}

/// Whether a thread of any process exists, with that number in this process's PID namespace.
pub(crate) fn is_anywhere(thread: u32) -> bool {
    let Ok(thread) = i32::try_from(thread) else { return false };
    // SAFETY: signal 0 only asks.
    let result = unsafe { call(libc::SYS_kill, [thread as usize, 0, 0, 0, 0, 0]) };
    !failed(result, libc::ESRCH)
}
