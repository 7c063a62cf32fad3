// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of the guard at work: a file in `/run/reprieve` that names it and its supervisor.
//!
//! > **Invariant.** Whoever changes slices or reservations, or undoes such changes, has the lock.
//! > guard and its supervisor share it, and the kernel releases it when both are gone. The file
//! > stays until all is undone.

use super::server::{self, Servers};
use super::slice::{self, SHORT};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Pid;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

const NAME: &str = "guard";
/// Where guard is asked, in the same directory: a single name, since the kernel runs one scheduler
/// at a time.
pub const SOCKET: &str = "control";

pub struct Lock {
    path: PathBuf,
    file: File,
    /// The reservations before guard, if any are known.
    pub before: Servers,
}

/// Makes guard's directory, which others may read, whatever the umask is.
pub fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// The result of undoing.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Restored {
    /// Threads that had their slices back.
    pub threads: usize,
    /// CPUs whose reservation for vCPUs was given back.
    pub cpus: usize,
    /// A guard that is still at work, or whose supervisor is: nothing was touched.
    pub active: Option<u32>,
    /// Things that could not be restored, and why.
    pub failed: Vec<String>,
}

/// Removes a socket where nobody listens.
pub fn forget_dead(path: &Path) {
    if UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(path);
    }
}

impl Lock {
    /// Takes the lock in `directory`, or returns the process of the guard that has it.
    pub fn take(directory: &Path) -> io::Result<Result<Lock, u32>> {
        make_directory(directory)?;
        let path = directory.join(NAME);
        loop {
            // A file that others cannot open: who may read one may lock it.
            let file = File::options()
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
                    return Ok(Err(pid.unwrap_or(0)));
                }
                locked => locked?,
            }
            // Whoever had it before has removed it.
            if file.metadata()?.nlink() > 0 {
                return Ok(Ok(Lock { path, file, before: Servers::new() }));
            }
        }
    }

    /// Names this process and its `supervisor`.
    pub fn name(&mut self, supervisor: Pid) -> io::Result<()> {
        self.file.set_len(0)?;
        writeln!(self.file, "{} {supervisor}", std::process::id())
    }

    /// Undoes what guard did.
    pub fn undo(&self) -> Restored {
        let mut restored = Restored::default();
        match slice::restore_all(SHORT) {
            Ok(threads) => restored.threads = threads,
            Err(error) => restored.failed.push(format!("slices: {error}")),
        }
        server::restore(Path::new(server::SERVERS), &self.before, &mut restored);
        restored
    }

    /// The same, and removes the socket of a dead guard. The file is removed if all is undone.
    pub fn end(&self) -> Restored {
        let mut restored = self.undo();
        forget_dead(&self.path.with_file_name(SOCKET));
        if restored.failed.is_empty() {
            if let Err(error) = fs::remove_file(&self.path) {
                restored.failed.push(format!("{}: {error}", self.path.display()));
            }
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_the_lock_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut lock = Lock::take(dir.path()).unwrap().ok().unwrap();
        lock.name(rustix::process::getpid()).unwrap();
        // The supervisor's.
        let shared = lock.file.try_clone().unwrap();
        let taken = || Lock::take(dir.path()).unwrap().err();
        assert_eq!(taken(), Some(std::process::id()));
        drop(lock);
        assert_eq!(taken(), Some(std::process::id()));
        drop(shared);
        let lock = Lock::take(dir.path()).unwrap().ok().unwrap();
        fs::remove_file(&lock.path).unwrap();
        // The lock of a file that is gone is nobody's.
        assert!(Lock::take(dir.path()).unwrap().is_ok());
    }
}
