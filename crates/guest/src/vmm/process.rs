// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes, from `/proc`.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Bytes of a command line that are read at most. A program that starts may have more, but no VMM
/// has; and a process can have any number, since it chooses where its command line is.
const COMMAND_LINE_MAX: u64 = 1 << 20;

/// A process and how it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks since the host's boot.
    pub start_time: u64,
    pub argv: Vec<String>,
}

impl Process {
    /// `None` if it is gone, is a kernel thread, has a command line of more than 1 MiB, or this
    /// process may not see it.
    pub fn read(pid: u32) -> Option<Process> {
        let start_time = start_time(pid)?;
        let raw = file(pid, "cmdline", COMMAND_LINE_MAX).ok()?;
        let argv: Vec<String> = raw
            .strip_suffix(b"\0")
            .unwrap_or(&raw)
            .split(|&b| b == 0)
            .map(|arg| String::from_utf8_lossy(arg).into_owned())
            .collect();
        (!argv[0].is_empty()).then_some(Process { pid, start_time, argv })
    }

    /// The file name of its program: of the executable, else of the first argument.
    pub fn program(&self) -> String {
        let exe = fs::read_link(format!("/proc/{}/exe", self.pid)).ok();
        let path = exe.as_deref().unwrap_or(Path::new(&self.argv[0]));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The package was upgraded under the running program.
        name.trim_end_matches(" (deleted)").to_owned()
    }
}

/// All processes with a command line, by process id.
pub fn all() -> Result<impl Iterator<Item = Process>> {
    let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(Process::read))
}

/// File `name` of process `pid` in `/proc`, whose length the process chooses.
///
/// # Errors
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it is longer than `most` bytes; those of
/// opening and reading it.
pub fn file(pid: u32, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// Whether process `pid` has the thread `tid` now.
pub fn has_thread(pid: u32, tid: u32) -> bool {
    fs::exists(format!("/proc/{pid}/task/{tid}")).unwrap_or(false)
}

/// The user who runs process `pid`, whatever rights it has: its real user ID, or the owner of its
/// user namespace where that is not root, since such an owner has thousands of IDs in there. (A
/// process chooses who owns its files in `/proc`, the user or root.)
pub fn user(pid: u32) -> Option<u32> {
    if let Some(owner) = namespace_owner(pid).filter(|&owner| owner != 0) {
        return Some(owner);
    }
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    user_of(&String::from_utf8_lossy(&status))
}

const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;

/// The user who made the user namespace that `pid` is in, or the outermost of those around it
/// within this process's own; `None` if `pid` is in the same one.
fn namespace_owner(pid: u32) -> Option<u32> {
    let own = fs::metadata("/proc/self/ns/user").ok()?.ino();
    let mut namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    if namespace.metadata().ok()?.ino() == own {
        return None;
    }
    loop {
        // SAFETY: no memory is passed.
        let parent = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as _) };
        if parent < 0 {
            break;
        }
        // SAFETY: a new descriptor of our own.
        let parent = unsafe { File::from_raw_fd(parent) };
        if parent.metadata().ok()?.ino() == own {
            break;
        }
        namespace = parent;
    }
    let mut owner: libc::uid_t = 0;
    // SAFETY: `owner` is valid for the write.
    let done = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) };
    (done == 0).then_some(owner)
}

fn user_of(status: &str) -> Option<u32> {
    // No line before it can begin so: in the process's name, line feeds are escaped.
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// When process `pid` started, clock ticks since the host's boot.
pub fn start_time(pid: u32) -> Option<u64> {
    Some(stat(pid).ok()??.1)
}

/// What has become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Runs,
    /// By SIGSTOP or a terminal.
    Stopped,
    /// It is gone, or waits for its parent only.
    Ended,
}

/// What has become of the process `pid` that started then. One that cannot be looked at, because
/// this process has no file descriptor or no memory left, runs.
pub fn life(pid: u32, start_time: u64) -> Life {
    match stat(pid) {
        Ok(Some((b'Z' | b'X', _)) | None) => Life::Ended,
        Ok(Some((_, found))) if found != start_time => Life::Ended,
        Ok(Some((b'T', _))) => Life::Stopped,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            Life::Ended
        }
        Ok(_) | Err(_) => Life::Runs,
    }
}

/// Whether the process `pid` that started then has ended.
pub fn is_gone(pid: u32, start_time: u64) -> bool {
    life(pid, start_time) == Life::Ended
}

/// State and start.
fn stat(pid: u32) -> io::Result<Option<(u8, u64)>> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain anything, also half a character; behind it, the first
    // field is the state, and the 20th the start.
    let stat = String::from_utf8_lossy(&stat);
    let parse = |stat: &str| {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some((*fields.next()?.as_bytes().first()?, fields.nth(18)?.parse().ok()?))
    };
    Ok(parse(&stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_itself_and_nobody_who_is_gone() {
        let me = Process::read(std::process::id()).unwrap();
        assert_eq!(me, Process::read(me.pid).unwrap());
        assert!(me.start_time > 0 && all().unwrap().any(|process| process == me));
        let exe = std::env::current_exe().unwrap();
        assert_eq!(me.program(), exe.file_name().unwrap().to_str().unwrap());
        assert_eq!(Process::read(u32::MAX), None);
        assert!(!is_gone(me.pid, me.start_time));
        assert!(is_gone(me.pid, me.start_time + 1) && is_gone(u32::MAX, me.start_time));
    }

    #[test]
    fn its_user_is_the_real_one() {
        // SAFETY: no preconditions.
        assert_eq!(user(std::process::id()), Some(unsafe { libc::getuid() }));
        assert_eq!(user_of("Name:\tUid: 7\nUid:\t1000\t0\t0\t0\n"), Some(1000));
        assert_eq!(user_of("Name:\ta\n"), None);
        assert_eq!(user(u32::MAX), None);
    }

    #[test]
    fn in_a_namespace_it_is_who_made_that() {
        use std::os::unix::process::CommandExt as _;
        // SAFETY: no preconditions.
        if unsafe { libc::getuid() } != 0 {
            return;
        }
        for maker in [0, 4321] {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000");
            let enter = move || {
                // SAFETY: no memory is passed.
                let done = unsafe {
                    // A namespace in another one: the outer one's maker counts.
                    libc::setresuid(maker, maker, maker) == 0
                        && libc::unshare(libc::CLONE_NEWUSER) == 0
                        && libc::unshare(libc::CLONE_NEWUSER) == 0
                };
                if done { Ok(()) } else { Err(io::Error::last_os_error()) }
            };
            // SAFETY: it only makes system calls.
            unsafe { command.pre_exec(enter) };
            // Where users may make none, there is nothing to see.
            let Ok(mut child) = command.spawn() else { continue };
            let seen = user(child.id());
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(seen, Some(maker));
        }
    }

    #[test]
    fn no_more_is_read_than_was_asked_for() {
        let own = std::process::id();
        let length = file(own, "cmdline", COMMAND_LINE_MAX).unwrap().len() as u64;
        assert_eq!(file(own, "cmdline", length).unwrap().len() as u64, length);
        let error = file(own, "cmdline", length - 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
