// SPDX-License-Identifier: MIT OR Apache-2.0
//! Systems other than Linux: the same functions by what POSIX has, so that a program for several
//! systems can use the runtime on all of them.
//!
//! Without membarrier readers execute fences, and lookups run in plain sections. Threads have no
//! CPU of their own, and a thread that was killed is not found out.

use super::clock::timespec;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Where the calling thread's `errno` is.
pub(crate) fn errno() -> *mut i32 {
    // SAFETY: no preconditions.
    unsafe { libc::__error() }
}

/// Not 0, and less than 2^31.
pub(crate) fn thread_id() -> u32 {
    #[cfg(target_vendor = "apple")]
    let id = {
        let mut id = 0;
        // SAFETY: 0 is the calling thread, whose number is written.
        unsafe { libc::pthread_threadid_np(0, &mut id) };
        id as u32
    };
    #[cfg(not(target_vendor = "apple"))]
    // SAFETY: no preconditions.
    let id = unsafe { libc::pthread_getthreadid_np() } as u32;
    (id & i32::MAX as u32).max(1)
}

/// Whether this process has a thread of that id, dead or not. In doubt.
pub(crate) fn exists_here(_: u32) -> bool {
    true
}

/// The same of any thread and process.
pub(crate) fn exists(_: u32) -> bool {
    true
}

/// The name can be seen in a debugger on Linux.
pub(super) fn set_name(_: &super::thread::Name) {}

/// Whether the program has more privileges than its caller.
pub(crate) fn privileged() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::issetugid() != 0 }
}

pub(crate) fn since_boot() -> u64 {
    super::monotonic().as_nanos() as u64
}

pub(crate) fn cpu_time(_: u32) -> Option<u64> {
    None
}

pub(crate) fn sleep(time: Duration) {
    // An early return is harmless: callers look again.
    // SAFETY: `time` outlives the call.
    unsafe { libc::nanosleep(&timespec(time), std::ptr::null_mut()) };
}

/// Looks at the word in a millisecond: there is no futex.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    const LOOK: Duration = Duration::from_millis(1);
    if word.load(std::sync::atomic::Ordering::SeqCst) == expected {
        sleep(timeout.map_or(LOOK, |timeout| timeout.min(LOOK)));
    }
}

pub(crate) fn futex_wake(_: &AtomicU32, _: i32) {}

pub(crate) const MEMBARRIER_QUERY: i32 = 0;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// There is none.
pub(crate) fn membarrier(_: i32) -> i64 {
    -1
}

pub(crate) fn membarrier_on(_: i32, _: Option<usize>) -> i64 {
    -1
}

pub(crate) fn cpus() -> usize {
    // SAFETY: no preconditions.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize
}

pub(crate) fn cpu_numbers() -> Option<usize> {
    None
}

pub(crate) fn note_usable() {}

pub(crate) fn usable_at_start(_: usize) -> bool {
    false
}

pub(crate) fn may_use(_: usize) -> bool {
    false
}

pub(crate) fn unbind(_: u32) {}

pub(crate) fn is_bound(_: u32, _: usize) -> bool {
    false
}

pub(crate) fn is_unbound() -> bool {
    false
}

pub(crate) fn only_cpu() -> Option<usize> {
    None
}

pub(crate) fn bind(_: usize) -> bool {
    false
}

pub(crate) fn current_cpu() -> Option<usize> {
    None
}

pub(crate) fn schedule_like_main() {}

/// Takes a signal that is pending.
pub(super) fn take_signal(set: &libc::sigset_t) {
    // SAFETY: plain data that the calls fill in. The signal is pending, so nobody waits.
    unsafe {
        let (mut pending, mut signal): (libc::sigset_t, _) = (std::mem::zeroed(), 0);
        libc::sigpending(&mut pending);
        if libc::sigismember(&pending, libc::SIGPIPE) == 1 {
            libc::sigwait(set, &mut signal);
        }
    }
}
