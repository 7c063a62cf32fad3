// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls, and what `/proc` tells.

use crate::error::Errno;
pub(crate) use crate::file::limit;
use crate::file::{self, File};
use crate::kernel::{self, call};
pub(crate) use crate::kernel::{current_cpu, expect_a_filter, is_filtered, monotonic, now};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub(crate) const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
pub(crate) const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

pub(crate) fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier reads no memory of ours.
    !is_filtered() && unsafe { call!(SYS_membarrier, command, 0, 0) }.is_ok()
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

/// Sleeps while the word has that value. Always with a time limit, so that a signal handler ends
/// the sleep with `EINTR` whatever its SA_RESTART says, as the System V calls end.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> i32 {
    let time = timespec(timeout);
    // SAFETY: `word` and `time` outlive the call.
    let result =
        unsafe { call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time) };
    result.map_or_else(|Errno(errno)| errno, |_| 0)
}

/// A word to sleep on, as `futex_waitv` takes it.
#[repr(C)]
pub(crate) struct Expected {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

impl Expected {
    /// The most that the kernel takes.
    pub const MOST: usize = 128;

    pub fn new(word: &AtomicU32, value: u32) -> Expected {
        /// `FUTEX2_SIZE_U32`, shared by processes.
        const WORD: u32 = 2;
        let address = word.as_ptr() as u64;
        Expected { value: value.into(), address, flags: WORD, reserved: 0 }
    }
}

/// Sleeps while all words have these values, until a time of the monotonic clock. Which one was
/// woken. A handler with `SA_RESTART` does not end the sleep.
pub(crate) fn futex_wait_any(words: &[Expected], until: Duration) -> Result<usize, Errno> {
    if is_filtered() {
        return Err(Errno(libc::EPERM));
    }
    let (at, count, time) = (words.as_ptr(), words.len(), timespec(until));
    // SAFETY: the words and `time` outlive the call.
    unsafe { call!(SYS_futex_waitv, at, count, 0, &raw const time, libc::CLOCK_MONOTONIC) }
}

pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) {
    // SAFETY: the kernel only uses the address of `word`.
    let _ = unsafe { call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, threads) };
}

/// How long a file this process may make: beyond that the kernel sends a SIGXFSZ.
pub(crate) fn longest_file() -> u64 {
    limit(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX)
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: no preconditions, and no failure.
    unsafe { call!(SYS_gettid) }.unwrap_or(0) as u32
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: as above.
    unsafe { call!(SYS_getpid) }.unwrap_or(0) as u32
}

pub(crate) fn parent_id() -> u32 {
    // SAFETY: as above.
    unsafe { call!(SYS_getppid) }.unwrap_or(0) as u32
}

/// The effective user.
pub(crate) fn user() -> u32 {
    // SAFETY: as above.
    unsafe { call!(SYS_geteuid) }.unwrap_or(0) as u32
}

/// The effective group.
pub(crate) fn group() -> u32 {
    // SAFETY: as above.
    unsafe { call!(SYS_getegid) }.unwrap_or(0) as u32
}

/// The CPUs that this thread may run on.
pub(crate) fn usable_cpus() -> u32 {
    let mut allowed = [0u64; 128];
    // SAFETY: a buffer that is valid for its length.
    let told =
        unsafe { call!(SYS_sched_getaffinity, 0, size_of_val(&allowed), allowed.as_mut_ptr()) };
    told.map_or(1, |_| allowed.iter().map(|word| word.count_ones()).sum())
}

/// Lets others have this CPU that want it.
pub(crate) fn yield_cpu() {
    if !is_filtered() {
        // SAFETY: no preconditions.
        let _ = unsafe { call!(SYS_sched_yield) };
    }
}

/// By a call that all waiting needs.
pub(crate) fn pause(time: Duration) {
    futex_wait(&AtomicU32::new(0), 0, time);
}

/// The number of this process's PID namespace; 0 if the kernel does not tell.
pub(crate) fn pid_namespace() -> u64 {
    /// `PIDFD_GET_PID_NAMESPACE`, since Linux 6.11.
    const GET_PID_NAMESPACE: i32 = 0xff05;
    // Right whatever PID namespace this `/proc` is of.
    let asked = file::about("/proc/self/ns/pid").or_else(|_| {
        let open = |number: usize| File::of_number(number as i32);
        // SAFETY: it touches no memory.
        let process = unsafe { call!(SYS_pidfd_open, process_id(), 0) }.map(open)?;
        // SAFETY: as above.
        let found = unsafe { call!(SYS_ioctl, process.number(), GET_PID_NAMESPACE, 0) };
        found.map(open)?.about()
    });
    asked.map_or(0, |found| found.identity().1)
}

/// The number of this thread's time namespace; 0 where there are none.
pub(crate) fn time_namespace() -> u64 {
    file::about("/proc/self/ns/time").map_or(0, |found| found.identity().1)
}

/// Whether `/proc` numbers processes as the kernel does for this one. It may be missing (`chroot`),
/// or be that of another PID namespace (`unshare` without a mount), where a number is somebody
/// else's.
pub(crate) fn proc_has_our_numbers() -> bool {
    let mut link = [0u8; 16];
    let number = file::read_link(c"/proc/self", &mut link).unwrap_or_default();
    std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()) == Some(process_id())
}

/// The answer of `/proc` about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    /// The process runs, and started at that time (clock ticks since boot).
    Started(u64),
    /// No process is there, or only its exit status is left.
    Gone,
    /// `/proc` is not there, is another PID namespace's, or hides it.
    Unknown,
}

pub(crate) fn process(pid: u32) -> Process {
    if is_filtered() {
        return Process::Unknown;
    }
    let mut path = [0u8; 48];
    // Its first thread's file says the same; of `/proc/PID/stat` some emulators make up their own.
    let text = format_args!("/proc/{pid}/task/{pid}/stat\0").to_string();
    path[..text.len()].copy_from_slice(text.as_bytes());
    let mut stat = [0u8; 1024];
    let path = std::ffi::CStr::from_bytes_until_nul(&path).unwrap_or(c"");
    // SAFETY: signal 0 only asks.
    if unsafe { call!(SYS_kill, pid, 0) } == Err(Errno(libc::ESRCH)) {
        return Process::Gone;
    }
    let read = proc_has_our_numbers().then(|| file::read_small(path, &mut stat)).flatten();
    match read {
        None | Some([]) => process_without_proc(pid),
        Some(stat) => parse_stat(stat),
    }
}

/// Whether only the exit status is left of the process of a number that there is.
fn process_without_proc(pid: u32) -> Process {
    // SAFETY: `ended` outlives the call.
    unsafe {
        // This can be read from once no thread is left.
        let Ok(process) = call!(SYS_pidfd_open, pid, 0) else {
            return if is_dead_child(pid) { Process::Gone } else { Process::Unknown };
        };
        let process = File::of_number(process as i32);
        let mut ended = libc::pollfd { fd: process.number(), events: libc::POLLIN, revents: 0 };
        let (now, mask) = (timespec(Duration::ZERO), std::ptr::null::<u8>());
        let found = call!(SYS_ppoll, &raw mut ended, 1, &raw const now, mask, 8);
        if found.is_ok_and(|found| found > 0) { Process::Gone } else { Process::Unknown }
    }
}

/// Whether it is a child of this process of which only the exit status is left. Needs no
/// descriptor.
fn is_dead_child(pid: u32) -> bool {
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: plain data, which the call fills in. It leaves the child as it is.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let none = std::ptr::null::<u8>();
        call!(SYS_waitid, libc::P_PID, pid, &raw mut info, how, none).is_ok()
            && info.si_pid() == pid as i32
    }
}

/// The name may hold anything, brackets too: fields are counted from the last bracket.
fn parse_stat(stat: &[u8]) -> Process {
    let Some(end) = stat.iter().rposition(|&b| b == b')') else { return Process::Unknown };
    let mut fields = stat[end + 1..].split(|&b| b == b' ').filter(|f| !f.is_empty());
    let state = fields.next().unwrap_or(b"?");
    let mut number =
        |skipped| fields.nth(skipped).and_then(|f| std::str::from_utf8(f).ok()?.parse().ok());
    let (threads, start) = (number(16), number(1));
    // Others of its threads go on where the first one has ended by itself (`pthread_exit`).
    if matches!(state, b"Z" | b"X" | b"x") && threads.is_none_or(|threads| threads <= 1) {
        return Process::Gone;
    }
    start.map_or(Process::Unknown, Process::Started)
}

/// Whether that thread of a process of this PID namespace is gone.
pub(crate) fn thread_gone(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    !is_filtered() && unsafe { call!(SYS_tgkill, pid, tid, 0) == Err(Errno(libc::ESRCH)) }
}

/// Blocks all signals while it lives. Keeps `errno`.
pub(crate) struct SignalsBlocked {
    old: kernel::Signals,
    errno: i32,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // SAFETY: this thread's own.
        let errno = unsafe { *libc::__errno_location() };
        SignalsBlocked { old: kernel::block(libc::SIG_BLOCK, kernel::ALL_SIGNALS), errno }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        kernel::block(libc::SIG_SETMASK, self.old);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.errno };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let Process::Started(start) = process(process_id()) else { panic!("no /proc") };
        assert!(start > 0);
        let named = b"7 (a) Z (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_stat(named), Process::Started(4711));
        assert_eq!(parse_stat(b"7 (a) Z 1 2 3"), Process::Gone);
        let first_ended = b"7 (a) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 4711 20";
        assert_eq!(parse_stat(first_ended), Process::Started(4711));
        let zombie = b"7 (a) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4711 20";
        assert_eq!(parse_stat(zombie), Process::Gone);
        assert_eq!(parse_stat(b"7 (a"), Process::Unknown);
    }

    #[test]
    fn a_zombie_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while process(child.id()) != Process::Gone {
            std::thread::yield_now();
        }
        while process_without_proc(child.id()) != Process::Gone {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(process(child.id()), Process::Gone);
        assert_eq!(process_without_proc(process_id()), Process::Unknown);
    }
}
