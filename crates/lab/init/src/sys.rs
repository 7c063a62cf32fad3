// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that `std` does not offer, as safe functions.
//!
//! All `unsafe` code of init is here, in `gate` (shared memory), in `workload/clone` (a raw
//! `clone3`), in `workload/psearchy` (mapped files and tables) and in `calibrate` (CPUID).

use crate::protocol::TIMEOUT_FACTOR;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::system::{RebootCommand, finit_module, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use rustix::thread::{ClockId, CpuSet, clock_nanosleep_absolute, sched_setaffinity};
use rustix::time::{Timespec, clock_getres, clock_gettime};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

/// Errors are sentences for the user; they are sent in `Event::Error`.
pub type Result<T> = std::result::Result<T, String>;

/// Adds to an error what was being done.
pub trait Context<T> {
    fn context(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|e| format!("{what}: {e}"))
    }
}

/// A time limit, multiplied by the lab's factor for slow machines.
pub fn scaled(limit: Duration) -> Duration {
    let factor = std::env::var(TIMEOUT_FACTOR).ok().and_then(|v| v.parse().ok());
    // Tests run on the host, where nobody tells it.
    limit.saturating_mul(factor.unwrap_or(if cfg!(test) { 1000 } else { 1 }))
}

fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn nanoseconds(t: Timespec) -> u64 {
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// `CLOCK_MONOTONIC`, ns: the clock of every time in the protocol and of the trace.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Length of the scheduler tick: the coarse clocks advance with it.
pub fn tick_ns() -> Option<u64> {
    Some(nanoseconds(clock_getres(ClockId::MonotonicCoarse))).filter(|ns| *ns > 0)
}

/// Sleeps until `CLOCK_MONOTONIC` shows `deadline_ns`, through signals.
pub fn sleep_until(deadline_ns: u64) {
    let t = Timespec {
        tv_sec: (deadline_ns / 1_000_000_000) as _,
        tv_nsec: (deadline_ns % 1_000_000_000) as _,
    };
    while clock_nanosleep_absolute(ClockId::Monotonic, &t) == Err(Errno::INTR) {}
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: u32) -> Result<()> {
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(format!("CPU {cpu}: more than {} are not supported", CpuSet::MAX_CPU));
    }
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).context(format_args!("binding a thread to CPU {cpu}"))
}

/// Makes the calling thread a real-time one (SCHED_FIFO, lowest priority).
pub fn make_realtime() -> io::Result<()> {
    let p = libc::sched_param { sched_priority: 1 };
    // SAFETY: `p` is valid for the read.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &p) }.into()).map(drop)
}

/// Number of CPUs that are online.
pub fn cpus() -> u32 {
    // SAFETY: no memory involved.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u32
}

pub fn mount(source: &str, target: &str, kind: &str, data: &str) -> io::Result<()> {
    let data = CString::new(data)?;
    rustix::mount::mount(source, target, kind, MountFlags::empty(), data.as_c_str())?;
    Ok(())
}

/// Unmounts; `lazily`: removes it from the tree at once, and unmounts it after its last use.
pub fn unmount(target: &str, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(target, flags)?;
    Ok(())
}

/// Loads a kernel module from a file, without parameters.
pub fn load_module(path: &Path) -> io::Result<()> {
    Ok(finit_module(File::open(path)?, c"", 0)?)
}

/// Switches the machine off; returns only if that fails.
pub fn power_off() {
    let _ = reboot(RebootCommand::PowerOff);
}

/// Ends the VM the way a kernel panic does: QEMU runs with `-no-reboot`.
pub fn restart() {
    let _ = reboot(RebootCommand::Restart);
}

/// Starts the kernel in file `kernel` in place of this one; returns only if that fails.
pub fn kexec(kernel: &str, initrd: &str, cmdline: &str) -> Result<()> {
    let open = |path: &str| File::open(path).context(path);
    let (kernel, initrd) = (open(kernel)?, open(initrd)?);
    let line = CString::new(cmdline).context("the kernel's command line")?;
    let length = line.as_bytes_with_nul().len();
    // SAFETY: open descriptors, and a string of that length with its end.
    let loaded = unsafe {
        let (kernel, initrd) = (kernel.as_raw_fd(), initrd.as_raw_fd());
        libc::syscall(libc::SYS_kexec_file_load, kernel, initrd, length, line.as_ptr(), 0)
    };
    check(loaded).context("loading another kernel")?;
    reboot(RebootCommand::Kexec).context("kexec")
}

/// A new pseudo-terminal that passes bytes as they are: our side, the program's side.
pub fn pty() -> io::Result<(File, File)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let mut settings = tcgetattr(&theirs)?;
    settings.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &settings)?;
    Ok((ours.into(), theirs.into()))
}

/// Waits until there is something to read from `fd`; false if there is nothing within `limit_ms`,
/// or if the other side is not open.
pub fn readable(fd: BorrowedFd, limit_ms: u32) -> bool {
    poll(fd, PollFlags::IN, limit_ms).contains(PollFlags::IN)
}

/// The same for room to write; true also if a write would fail.
pub fn writable(fd: BorrowedFd, limit_ms: u32) -> bool {
    let fails = PollFlags::ERR | PollFlags::NVAL;
    poll(fd, PollFlags::OUT, limit_ms).intersects(PollFlags::OUT | fails)
}

fn poll(fd: BorrowedFd, events: PollFlags, limit_ms: u32) -> PollFlags {
    let limit = Timespec {
        tv_sec: (limit_ms / 1_000).into(),
        tv_nsec: (limit_ms % 1_000 * 1_000_000).into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, events)];
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(1..) => fds[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// Waits until some child has ended and returns its id, without reaping it; `None` when there is no
/// child.
pub fn wait_for_dead_child() -> Option<i32> {
    loop {
        // SAFETY: an all-zero siginfo_t is valid; waitid fills it in.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is valid for the write.
        let r = unsafe { libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOWAIT) };
        if r == 0 {
            // SAFETY: waitid has filled in the fields of a child's end.
            return Some(unsafe { info.si_pid() });
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Reaps a child that has ended: its exit status, or 128 + signal. `None` if there is no such
/// child.
pub fn reap(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    if unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != pid {
        return None;
    }
    Some(if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    })
}

/// `synchronize_rcu()` from user space; refused by kernels that run with `nohz_full`.
pub fn synchronize_rcu() -> io::Result<()> {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: no memory involved.
    check(unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) }).map(drop)
}

/// A cheap system call that always enters the kernel.
pub fn getppid() {
    // SAFETY: no memory involved.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// Creates a System V semaphore set and removes it.
pub fn semaphore_set(semaphores: u32) -> io::Result<()> {
    // SAFETY: no memory involved.
    let id = check(
        unsafe { libc::semget(libc::IPC_PRIVATE, semaphores as i32, 0o600 | libc::IPC_CREAT) }
            .into(),
    )?;
    // SAFETY: no memory involved with IPC_RMID.
    check(unsafe { libc::semctl(id as i32, 0, libc::IPC_RMID) }.into()).map(drop)
}

/// Brings the loopback interface up.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: no memory involved.
    let socket = check(
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into(),
    )? as i32;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a valid ifreq with a terminated name; the socket is ours to close.
    let r = unsafe {
        let r = libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &request);
        libc::close(socket);
        r
    };
    check(r.into()).map(drop)
}
