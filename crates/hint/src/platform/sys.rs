// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. None allocates, and errno stays as it was: C programs lock mutexes between a call
//! and its errno.

use super::end::End;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

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
    super::clock::keep_errno(|| unsafe {
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

/// Lets others have this CPU that want it.
pub(crate) fn yield_cpu() {
    // SAFETY: no preconditions.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Sleeps while `*word == expected`, at most `time`. False if the time is over.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, time: Option<Duration>) -> bool {
    let limit = time.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: t.subsec_nanos().into(),
    });
    futex_wait_by((libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, limit), word, expected)
}

/// The same until `end`.
pub(crate) fn futex_wait_until(word: &AtomicU32, expected: u32, end: Option<End>) -> bool {
    futex_wait_by(End::for_futex(end), word, expected)
}

fn futex_wait_by(by: (i32, Option<libc::timespec>), word: &AtomicU32, expected: u32) -> bool {
    let limit = by.1.as_ref().map_or(std::ptr::null(), std::ptr::from_ref).expose_provenance();
    let (word, all) = (word.as_ptr().expose_provenance(), libc::FUTEX_BITSET_MATCH_ANY as u32);
    let arguments = [word, by.0 as usize, expected as usize, limit, 0, all as usize];
    // SAFETY: the word outlives the call; the limit is a valid timespec or null.
    !failed(unsafe { call(libc::SYS_futex, arguments) }, libc::ETIMEDOUT)
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
