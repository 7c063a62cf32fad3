// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls, and what `/proc` tells.

use crate::error::Errno;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub(crate) const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
pub(crate) const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

pub(crate) fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier reads no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
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
    let result = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time)
    };
    if result == 0 { 0 } else { Errno::last().0 }
}

pub(crate) fn futex_wake(word: &AtomicU32, threads: i32) {
    // SAFETY: the kernel only uses the address of `word`.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, threads) };
}

/// How many bytes this process may lock into memory.
pub(crate) fn most_locked() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    limit.rlim_cur
}

/// How long a file this process may make: beyond that the kernel sends a SIGXFSZ.
pub(crate) fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known { limit.rlim_cur } else { u64::MAX }
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Not the C library's function: nothing caches what the kernel says here.
pub(crate) fn process_id() -> u32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

pub(crate) fn parent_id() -> u32 {
    // SAFETY: getppid has no preconditions.
    unsafe { libc::syscall(libc::SYS_getppid) as u32 }
}

/// The clock that the kernel stamps objects with: seconds, without a system call.
pub(crate) fn now() -> u64 {
    // SAFETY: a null pointer is allowed.
    unsafe { libc::time(std::ptr::null_mut()) as u64 }
}

pub(crate) fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn current_cpu() -> u64 {
    // SAFETY: no preconditions. The C library reads it from its rseq area.
    unsafe { libc::sched_getcpu() as u64 }
}

/// The CPUs that this thread may run on.
pub(crate) fn usable_cpus() -> u32 {
    // SAFETY: plain data of the size given.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed) {
            0 => libc::CPU_COUNT(&allowed) as u32,
            _ => 1,
        }
    }
}

/// Lets others have this CPU that want it.
pub(crate) fn yield_cpu() {
    // SAFETY: no preconditions.
    unsafe { libc::sched_yield() };
}

pub(crate) fn pause(time: Duration) {
    let time = timespec(time);
    // SAFETY: `time` outlives the call.
    unsafe {
        libc::syscall(libc::SYS_nanosleep, &raw const time, std::ptr::null_mut::<libc::timespec>())
    };
}

/// The number of this process's PID namespace; 0 if the kernel does not tell.
pub(crate) fn pid_namespace() -> u64 {
    /// `PIDFD_GET_PID_NAMESPACE`, since Linux 6.11.
    const GET_PID_NAMESPACE: libc::Ioctl = 0xff05;
    let _cancel = CancelDisabled::new();
    // SAFETY: a string, plain data that the calls fill in, and files that are ours.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        // Right whatever PID namespace this `/proc` is of.
        if libc::stat(c"/proc/self/ns/pid".as_ptr(), &mut found) == 0 {
            return found.st_ino;
        }
        let process = libc::syscall(libc::SYS_pidfd_open, process_id(), 0) as libc::c_int;
        if process < 0 {
            return 0;
        }
        let namespace = libc::ioctl(process, GET_PID_NAMESPACE, 0);
        libc::close(process);
        if namespace < 0 {
            return 0;
        }
        let known = libc::fstat(namespace, &mut found) == 0;
        libc::close(namespace);
        if known { found.st_ino } else { 0 }
    }
}

/// The number of this thread's time namespace; 0 where there are none.
pub(crate) fn time_namespace() -> u64 {
    // SAFETY: a string, and plain data that the call fills in.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        let known = libc::stat(c"/proc/self/ns/time".as_ptr(), &mut found) == 0;
        if known { found.st_ino } else { 0 }
    }
}

/// Whether `/proc` numbers processes as the kernel does for this one. It may be missing (`chroot`),
/// or be that of another PID namespace (`unshare` without a mount), where a number is somebody
/// else's.
pub(crate) fn proc_has_our_numbers() -> bool {
    let mut link = [0u8; 16];
    // SAFETY: a string, and a buffer that is valid for its length.
    let length =
        unsafe { libc::readlink(c"/proc/self".as_ptr(), link.as_mut_ptr().cast(), link.len()) };
    let number = link.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default();
    std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()) == Some(process_id())
}

/// What `/proc` says about a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Process {
    /// It runs, and started at that time (clock ticks since boot).
    Started(u64),
    /// There is none, or only its exit status is left.
    Gone,
    /// `/proc` is not there, is another PID namespace's, or hides it.
    Unknown,
}

/// Reads a small file without the allocator: this may run in the child of a fork.
fn read_small(path: &std::ffi::CStr, buffer: &mut [u8]) -> isize {
    let _cancel = CancelDisabled::new();
    // SAFETY: a string, and a buffer that is valid for its length.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return -1;
        }
        let read = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(file);
        read
    }
}

pub(crate) fn process(pid: u32) -> Process {
    let mut path = [0u8; 48];
    // Its first thread's file says the same; of `/proc/PID/stat` some emulators make up their own.
    let text = format_args!("/proc/{pid}/task/{pid}/stat\0").to_string();
    path[..text.len()].copy_from_slice(text.as_bytes());
    let mut stat = [0u8; 1024];
    let path = std::ffi::CStr::from_bytes_until_nul(&path).unwrap_or(c"");
    let read = if proc_has_our_numbers() { read_small(path, &mut stat) } else { -1 };
    if read <= 0 {
        return process_without_proc(pid);
    }
    parse_stat(&stat[..read as usize])
}

/// Whether there is a process of that number, or only its exit status is left.
fn process_without_proc(pid: u32) -> Process {
    let _cancel = CancelDisabled::new();
    // SAFETY: signal 0 only asks; the file is ours, and `ended` outlives the call.
    unsafe {
        if libc::kill(pid as libc::pid_t, 0) != 0 && Errno::last().0 == libc::ESRCH {
            return Process::Gone;
        }
        // A signal can be sent to a zombie, too. This can be read from once no thread is left.
        let file = libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int;
        if file < 0 {
            return if is_dead_child(pid) { Process::Gone } else { Process::Unknown };
        }
        let mut ended = libc::pollfd { fd: file, events: libc::POLLIN, revents: 0 };
        let found = libc::poll(&mut ended, 1, 0);
        libc::close(file);
        if found > 0 { Process::Gone } else { Process::Unknown }
    }
}

/// Whether it is a child of this process of which only the exit status is left. Needs no
/// descriptor.
fn is_dead_child(pid: u32) -> bool {
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: plain data, which the call fills in. It leaves the child as it is.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, pid, &mut info, how) == 0 && info.si_pid() == pid as i32
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

/// Whether a process that is there has mapped a file of that name, which begins with a slash, in
/// whatever directory. `None`: `/proc` does not tell.
pub(crate) fn has_mapped(pid: u32, name: &str) -> Option<bool> {
    let _cancel = CancelDisabled::new();
    if !proc_has_our_numbers() {
        return None;
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    // All threads have the same, but those that have ended have nothing.
    let maps = tasks.flatten().find_map(|task| {
        std::fs::read(task.path().join("maps")).ok().filter(|maps| !maps.is_empty())
    })?;
    Some(maps.split(|&b| b == b'\n').any(|line| is_of_file(line, name)))
}

/// Whether a line of `maps` is of a file of that name, which begins with a slash.
fn is_of_file(line: &[u8], name: &str) -> bool {
    line.strip_suffix(b" (deleted)").unwrap_or(line).ends_with(name.as_bytes())
}

/// Where this process has mapped parts of a file of that name, as [`has_mapped`] takes it, of which
/// the beginning is, or would be, at `address`. `None`: `/proc` does not tell.
pub(crate) fn mapped_parts(address: usize, name: &str) -> Option<Vec<Range<usize>>> {
    let _cancel = CancelDisabled::new();
    // The first one is empty if the process's first thread has ended.
    let maps = ["/proc/self/maps", "/proc/thread-self/maps"]
        .into_iter()
        .find_map(|path| std::fs::read(path).ok().filter(|maps| !maps.is_empty()))?;
    let lines = maps.split(|&b| b == b'\n').filter(|line| is_of_file(line, name));
    let parts = lines.filter_map(parse_mapping);
    let parts = parts.filter(|(part, offset)| part.start.checked_sub(*offset) == Some(address));
    Some(parts.map(|(part, _)| part).collect())
}

/// The addresses of a line of `maps`, and the offset in the file.
fn parse_mapping(line: &[u8]) -> Option<(Range<usize>, usize)> {
    let mut fields = line.split(|&b| b == b' ').map(|field| std::str::from_utf8(field).ok());
    let number = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = fields.next()??.split_once('-')?;
    let offset = fields.nth(1)??;
    Some((number(start)?..number(end)?, number(offset)?))
}

/// Whether that thread of a process of this PID namespace is gone.
pub(crate) fn thread_gone(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    result != 0 && Errno::last().0 == libc::ESRCH
}

/// Disables cancellation of this thread (`pthread_cancel`) while it lives. A thread that is
/// cancelled ends in the next call that is a cancellation point, and what it has locked stays
/// locked: for this process, or for all of the namespace. So whatever opens, closes or reserves
/// files, or reads `/proc`, does it with cancellation disabled. (The calls that do none of that are
/// too quick for it, and have no cancellation point.)
pub(crate) struct CancelDisabled {
    old: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

impl CancelDisabled {
    pub(crate) fn new() -> CancelDisabled {
        /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
        const DISABLE: libc::c_int = 1;
        let mut old = 0;
        // SAFETY: `old` is valid for the write.
        unsafe { pthread_setcancelstate(DISABLE, &mut old) };
        CancelDisabled { old }
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        // SAFETY: the state that this thread had; the result is not wanted.
        unsafe { pthread_setcancelstate(self.old, std::ptr::null_mut()) };
    }
}

/// Blocks all signals while it lives. Keeps `errno`.
pub(crate) struct SignalsBlocked {
    old: libc::sigset_t,
    errno: i32,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // SAFETY: the sets are plain data that the calls fill in; errno's location is this
        // thread's.
        unsafe {
            let errno = *libc::__errno_location();
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            SignalsBlocked { old, errno }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `old` was filled in by pthread_sigmask in `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut());
            *libc::__errno_location() = self.errno;
        }
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
    fn parts_of_a_mapping_are_found() {
        let line = b"7f00a000-7f00c000 rw-s 00003000 00:19 42    /dev/shm/my dir/shm.5 (deleted)";
        assert_eq!(parse_mapping(line), Some((0x7f00_a000..0x7f00_c000, 0x3000)));
        assert!(is_of_file(line, "/shm.5") && !is_of_file(line, "/hm.5"));
        assert_eq!(parse_mapping(b""), None);
        assert_eq!(parse_mapping(b"7f00a000-7f00c000 rw-s"), None);
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
        assert_eq!(process_without_proc(child.id()), Process::Gone);
        assert_eq!(process_without_proc(process_id()), Process::Unknown);
    }
}
