// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journal of CPUs with reservations that are not their own, and how to give these back.
//!
//! A reservation stays when the program that made it dies. So guard keeps a journal in
//! `/run/reprieve`: a line per CPU, written *before* the kernel is told of a change. guard's
//! supervisor ([`super::supervisor`]), the next guard, or `guard restore` undoes what it tells of.
//!
//! > **Invariant.** Whoever writes the journal, or undoes what it tells of, has its lock. guard and
//! > its supervisor share the lock, and the kernel releases it when both are gone.

use super::server::Server;
use super::slice::{self, SHORT};
use reprieve_watch::publish::make_directory;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const NAME: &str = "guard";

pub struct Journal {
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

impl Journal {
    /// Takes the journal in `directory`, or returns the process of the guard that has it.
    pub fn take(directory: &Path) -> io::Result<Result<Journal, u32>> {
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
                return Ok(Ok(Journal { path, file }));
            }
        }
    }

    /// Begins anew, and names this process and its `supervisor`.
    pub fn begin(&mut self, supervisor: u32) -> io::Result<()> {
        self.file.set_len(0)?;
        self.add(&format!("{} {supervisor}\n", std::process::id()))
    }

    pub fn add(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())
    }

    /// The descriptor whose lock this is.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Undoes what guard did.
    pub fn undo(&self) -> Restored {
        let mut restored = Restored::default();
        match slice::restore_all(SHORT) {
            Ok(threads) => restored.threads = threads,
            Err(error) => restored.failed.push(format!("slices: {error}")),
        }
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        for server in text.lines().skip(1).filter_map(Server::parse) {
            match server.restore() {
                Ok(had) => restored.cpus += usize::from(had),
                Err(error) => {
                    let what = format!("what is reserved on CPU {}: {error}", server.cpu);
                    restored.failed.push(what);
                }
            }
        }
        restored
    }

    /// The same. The journal is removed if all is undone.
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
    fn one_has_the_journal_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::take(dir.path()).unwrap().ok().unwrap();
        journal.begin(7).unwrap();
        // No such CPU has a reservation. The last line is torn.
        journal.add("server 4000000 1 2 3 4\nserver 1").unwrap();
        // The supervisor's.
        let shared = journal.file.try_clone().unwrap();
        let taken = || Journal::take(dir.path()).unwrap().err();
        assert_eq!(taken(), Some(std::process::id()));
        drop(journal);
        assert_eq!(taken(), Some(std::process::id()));
        drop(shared);
        let journal = Journal::take(dir.path()).unwrap().ok().unwrap();
        let restored = journal.end();
        assert_eq!((restored.cpus, restored.failed.len()), (0, 0));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        // The lock of a journal that is gone is nobody's.
        assert!(Journal::take(dir.path()).unwrap().is_ok());
    }
}
