// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes to the kernel that stay when a backend's process dies, and how to undo them:
//! slices of threads (`slice`), and what is reserved for a scheduler of sched_ext (`server`).
//!
//! > **Invariant.** A slice and a reservation that guard set can be told from all others, by a
//! > number that nobody else chooses. They are undone at the end, by the `supervisor` of a guard
//! > that was killed, by the next guard, or by `guard restore`.
//!
//! > **Invariant.** Whoever changes slices or reservations, or undoes such changes, has the lock: a
//! > file that names guard and its supervisor. These share it, and the kernel releases it when both
//! > are gone. The file stays until all is undone.

pub mod server;
pub mod slice;
pub mod supervisor;

use crate::error::Error;
use reprieve_watch::sees_host_processes;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Pid;
use server::Servers;
use slice::SHORT;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use supervisor::Supervisor;

/// The directory of guard's lock, and of the socket where it is asked.
pub(crate) const DIRECTORY: &str = "/run/reprieve";

/// Undoes what dead guards left, takes the lock, and starts the supervisor of this guard. To be
/// called before this process starts threads.
///
/// # Errors
/// Where another guard is at work, in another PID namespace than the host's, without the rights,
/// or in a process that has more than one thread already.
pub fn begin() -> Result<Supervisor, Error> {
    let failed = |doing: &'static str| {
        move |source| Error::Io { what: format!("{doing} in {DIRECTORY}"), source }
    };
    let runs = |pid| format!("guard runs already, as process {pid}: stop that one");
    let lock = take()?.map_err(|pid| Error::Unsupported(runs(pid)))?;
    if let Some(what) = lock.undo().failed.pop() {
        return Err(failed("restoring what a dead guard left")(io::Error::other(what)));
    }
    let starting = "starting the supervisor (run it as root), whose lock is";
    Supervisor::start(lock).map_err(failed(starting))
}

/// Undoes what a dead guard left. A guard that is at work keeps what it has changed.
///
/// # Errors
/// In another PID namespace than the host's, or if the lock cannot be taken.
pub fn restore() -> Result<Restored, Error> {
    Ok(match take()? {
        Ok(lock) => lock.end(),
        Err(pid) => Restored { active: Some(pid), ..Restored::default() },
    })
}

fn take() -> Result<Result<Lock, u32>, Error> {
    // Elsewhere, threads of the host's are out of sight.
    sees_host_processes()?;
    let what = || format!("taking the lock in {DIRECTORY}");
    Lock::take(Path::new(DIRECTORY)).map_err(|source| Error::Io { what: what(), source })
}

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

impl Lock {
    /// Takes the lock in `directory`, or returns the process of the guard that has it.
    pub fn take(directory: &Path) -> io::Result<Result<Lock, u32>> {
        make_directory(directory)?;
        let path = directory.join("guard");
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

    /// The same, and removes the file if all is undone.
    pub fn end(&self) -> Restored {
        let mut restored = self.undo();
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
