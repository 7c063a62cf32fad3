// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of the guard at work: a file in `/run/reprieve` that names it and its supervisor.
//!
//! > **Invariant.** Whoever changes slices or reservations, or undoes such changes, has the lock.
//! > guard and its supervisor share it, and the kernel releases it when both are gone. The file
//! > stays until all is undone.

use super::server::{self, Servers};
use super::slice::{self, SHORT};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const NAME: &str = "guard";

pub struct Lock {
    path: PathBuf,
    file: File,
}

/// The result of undoing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        if !directory.is_dir() {
            fs::create_dir_all(directory)?;
            // Whatever the umask is.
            fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        }
        let path = directory.join(NAME);
        loop {
            // A file that others cannot open: who may read one may lock it.
            let file = File::options()
                .append(true)
                .create(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            // SAFETY: no memory is passed.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error);
                }
                let text = fs::read_to_string(&path).unwrap_or_default();
                let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
                return Ok(Err(pid.unwrap_or(0)));
            }
            // Whoever had it before has removed it.
            if file.metadata()?.nlink() > 0 {
                return Ok(Ok(Lock { path, file }));
            }
        }
    }

    /// Names this process and its `supervisor`.
    pub fn name(&mut self, supervisor: u32) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all(format!("{} {supervisor}\n", std::process::id()).as_bytes())
    }

    /// The descriptor whose lock this is.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Undoes what guard did; `before` is what was reserved before.
    pub fn undo(&self, before: &Servers) -> Restored {
        let mut restored = Restored::default();
        match slice::restore_all(SHORT) {
            Ok(threads) => restored.threads = threads,
            Err(error) => restored.failed.push(format!("slices: {error}")),
        }
        server::restore(before, &mut restored);
        restored
    }

    /// The same. The file is removed if all is undone.
    pub fn end(&self, before: &Servers) -> Restored {
        let mut restored = self.undo(before);
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
        lock.name(7).unwrap();
        // The supervisor's.
        let shared = lock.file.try_clone().unwrap();
        let taken = || Lock::take(dir.path()).unwrap().err();
        assert_eq!(taken(), Some(std::process::id()));
        drop(lock);
        assert_eq!(taken(), Some(std::process::id()));
        drop(shared);
        let lock = Lock::take(dir.path()).unwrap().ok().unwrap();
        fs::remove_file(&lock.path).unwrap();
        // That of a file that is gone is nobody's.
        assert!(Lock::take(dir.path()).unwrap().is_ok());
    }
}
