// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small process that undoes what guard did to the kernel when guard dies without having done so.
//!
//! guard forks the supervisor before it has threads or has touched anything. The supervisor waits
//! for the end of a pipe whose other end only guard has: the kernel closes that even after a
//! `kill -9`. Then it undoes what guard did, removes the lock's file, and ends. It is in a session
//! of its own and blocks all signals: those of a terminal and of `systemctl stop` reach the whole
//! group. Where both are killed at the same moment, the next guard or `guard restore` undoes it.

use super::lock::Lock;
use super::server;
use rustix::io::{read, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, WaitStatus, setsid, waitpid};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

pub struct Supervisor {
    /// `None` after the end.
    pipe: Option<OwnedFd>,
    lock: Lock,
    pid: Pid,
    /// How it ended.
    status: Option<WaitStatus>,
}

impl Supervisor {
    /// Forks it, with guard's lock. To be called before this process starts threads.
    pub fn start(mut lock: Lock) -> io::Result<Supervisor> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!(
                "guard has to begin in a process with one thread, and this one has {threads}"
            )));
        }
        // None on a kernel without.
        lock.before = server::all(Path::new(server::SERVERS)).unwrap_or_default();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Blocked from its first instruction on.
        let signals = block_signals();
        // SAFETY: the process has one thread, so the child may do anything.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(write);
            supervise(&read, &lock);
        }
        let error = io::Error::last_os_error();
        // SAFETY: `signals` was the mask before.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &signals, std::ptr::null_mut()) };
        let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(error)?;
        lock.name(pid)?;
        Ok(Supervisor { pipe: Some(write), lock, pid, status: None })
    }

    /// Whether it has ended before guard: then nobody gives slices back if guard is killed.
    pub fn is_gone(&mut self) -> bool {
        self.wait(WaitOptions::NOHANG);
        self.status.is_some()
    }

    fn wait(&mut self, options: WaitOptions) {
        if self.status.is_none() {
            let waited = retry_on_intr(|| waitpid(Some(self.pid), options));
            self.status = waited.ok().flatten().map(|(_, status)| status);
        }
    }
}

impl Drop for Supervisor {
    /// The supervisor restores everything (what has been restored already is so twice) and ends.
    /// If it was killed, this process does that.
    fn drop(&mut self) {
        self.pipe = None;
        self.wait(WaitOptions::empty());
        if !self.status.is_some_and(WaitStatus::exited) {
            undo(&self.lock);
        }
    }
}

/// Blocks all signals; returns the mask of those that were.
fn block_signals() -> libc::sigset_t {
    let mut both = [std::mem::MaybeUninit::<libc::sigset_t>::uninit(); 2];
    let [all, before] = both.each_mut().map(|set| set.as_mut_ptr());
    // SAFETY: two sets, of which the C library fills the first, and the kernel the other.
    unsafe {
        libc::sigfillset(all);
        libc::sigprocmask(libc::SIG_SETMASK, all, before);
        both[1].assume_init()
    }
}

/// The supervisor itself. What else of guard's it has open, it has until its end, which follows
/// guard's.
fn supervise(pipe: &OwnedFd, lock: &Lock) -> ! {
    let _ = setsid();
    let _ = rustix::thread::set_name(c"reprieve-undo");
    // Nobody writes to it: this ends when guard does.
    let _ = retry_on_intr(|| read(pipe, &mut [0; 1]));
    let status = i32::from(!undo(lock));
    // SAFETY: no preconditions. Nothing of guard's is to run at this exit.
    unsafe { libc::_exit(status) }
}

/// Restores what guard changed; says what is left to do, if anything.
fn undo(lock: &Lock) -> bool {
    let failed = lock.end().failed;
    if !failed.is_empty() {
        let _ = writeln!(
            io::stderr(),
            "reprieve: not all was restored ({}): run `reprieve guard restore`",
            failed.join("; ")
        );
    }
    failed.is_empty()
}
