// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small process that undoes what guard did to the kernel when guard dies without having done so.
//!
//! The process is forked before guard has threads or has touched anything, and waits for the end of
//! a pipe whose other end only guard has: the kernel closes that even after a `kill -9`. Then it
//! undoes what guard did, removes the lock's file, and ends. It is in a
//! session of its own and ignores the signals of a terminal and of `systemctl stop`, which reach
//! the whole group. Where both are killed at the same moment, the next guard or `guard restore`
//! undoes it.

use super::lock::Lock;
use super::server::{self, Servers};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub struct Supervisor {
    /// `None` after the end.
    pipe: Option<OwnedFd>,
    lock: Lock,
    /// The reservations before guard.
    before: Servers,
    pid: libc::pid_t,
    /// How it ended, as of `waitpid`.
    status: Option<i32>,
}

impl Supervisor {
    /// Forks it, with guard's lock. To be called before this process starts threads.
    pub fn start(mut lock: Lock) -> io::Result<Supervisor> {
        alone()?;
        // None on a kernel without.
        let before = server::all().unwrap_or_default();
        let (read, write) = pipe()?;
        let (answer, answers) = pipe()?;
        // SAFETY: the process has one thread, so the child may do anything.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop((write, answer));
                supervise(read, answers, &lock, &before)
            }
            pid => {
                drop((read, answers));
                lock.name(pid as u32)?;
                let supervisor = Supervisor { pipe: Some(write), lock, before, pid, status: None };
                supervisor.began(answer)?;
                Ok(supervisor)
            }
        }
    }

    /// Waits until the supervisor is out of reach of guard's signals.
    fn began(&self, answer: OwnedFd) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(File::from(answer)).read_line(&mut line)?;
        match line.trim_end() {
            "ready" => Ok(()),
            _ => Err(io::Error::other("the supervisor did not start")),
        }
    }

    /// Whether it has ended before guard: then nobody gives slices back if guard is killed.
    pub fn is_gone(&mut self) -> bool {
        self.wait(libc::WNOHANG);
        self.status.is_some()
    }

    fn wait(&mut self, options: libc::c_int) {
        let mut status = 0;
        while self.status.is_none() {
            // SAFETY: waits for our own child, and writes to `status` only.
            match unsafe { libc::waitpid(self.pid, &mut status, options) } {
                pid if pid == self.pid => self.status = Some(status),
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    }
}

impl Drop for Supervisor {
    /// The supervisor restores everything (what has been restored already is so twice) and ends.
    /// If it was killed, this process does that.
    fn drop(&mut self) {
        self.pipe = None;
        self.wait(0);
        if !self.status.is_some_and(|status| libc::WIFEXITED(status)) {
            undo(&self.lock, &self.before);
        }
    }
}

/// Makes sure that this process has one thread. One that was joined runs nothing of this program
/// any more, and may be listed for long where it has no CPU to end on.
fn alone() -> io::Result<()> {
    const PF_EXITING: u32 = 4;
    let runs = |task: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let flags = stat.rsplit_once(") ")?.1.split(' ').nth(6)?.parse::<u32>().ok()?;
        (flags & PF_EXITING == 0).then_some(())
    };
    let tasks = std::fs::read_dir("/proc/self/task")?.flatten();
    match tasks.filter(|task| runs(task).is_some()).count() {
        1 => Ok(()),
        threads => Err(io::Error::other(format!(
            "guard has to begin in a process with one thread, and this one has {threads}"
        ))),
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to `ends`.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are open, and nobody else's.
    Ok(ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into())
}

/// The supervisor itself.
fn supervise(read: OwnedFd, answers: OwnedFd, lock: &Lock, before: &Servers) -> ! {
    let stderr = libc::STDERR_FILENO;
    detach(&[read.as_raw_fd(), answers.as_raw_fd(), lock.descriptor(), stderr]);
    let mut answers = File::from(answers);
    let _ = writeln!(answers, "ready");
    drop(answers);
    // Nobody writes to it: this ends when guard does.
    let _ = File::from(read).read_to_end(&mut Vec::new());
    exit(if undo(lock, before) { 0 } else { 1 })
}

/// Restores what guard changed; says what is left to do, if anything.
fn undo(lock: &Lock, before: &Servers) -> bool {
    let failed = lock.end(before).failed;
    if !failed.is_empty() {
        let _ = writeln!(
            io::stderr(),
            "reprieve: not all was restored ({}): run `reprieve guard restore`",
            failed.join("; ")
        );
    }
    failed.is_empty()
}

/// Lets go of everything of guard's but the descriptors `keep`.
fn detach(keep: &[i32]) {
    let list = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> = list.filter_map(|fd| fd.file_name().to_str()?.parse().ok()).collect();
    // Whoever reads guard's output must not wait for this process.
    for fd in open.into_iter().filter(|fd| !keep.contains(fd)) {
        // SAFETY: nothing in this process uses them any more. That of the list is closed already.
        unsafe { libc::close(fd) };
    }
    // SAFETY: plain system calls. The name is a string with its zero.
    unsafe {
        libc::setsid();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::prctl(libc::PR_SET_NAME, c"reprieve-undo".as_ptr());
    }
}

fn exit(status: i32) -> ! {
    // SAFETY: no preconditions. Nothing of guard's is to run at this exit.
    unsafe { libc::_exit(status) }
}
