// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journal of CPUs with reservations that are not their own, and how to give these back.
//!
//! A reservation stays when the program that made it dies. So each guard keeps a journal in
//! `/run/reprieve`: a line per CPU, written *before* the kernel is told of a change. Whoever finds
//! the journal of a dead guard can undo what it did: its supervisor ([`super::supervisor`]), the
//! next guard, or `guard restore`.

use super::server::Server;
use reprieve_guest::vmm::process::start_time;
use reprieve_watch::publish::make_directory;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "guard-";

/// Locked by whoever begins a journal or looks for others.
const TURN: &str = "turn";

/// Held while a journal is begun, or those of dead guards are looked for: two guards that start at
/// once would each take the other's for that of a dead one, or its reservations for those of
/// before. The kernel gives it back if this process dies.
pub struct Turn {
    path: PathBuf,
    _file: File,
}

impl Turn {
    /// Waits for it.
    pub fn take(directory: &Path) -> io::Result<Turn> {
        let path = directory.join(TURN);
        loop {
            // A file that others cannot open: who may read one may lock it.
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            // SAFETY: no memory is passed.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // Whoever had it before has removed it.
            if file.metadata()?.nlink() > 0 {
                return Ok(Turn { path, _file: file });
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A journal that is being written. It stays when this is dropped: the supervisor removes it.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Creates the journal of this process in `directory`.
    pub fn create(directory: &Path) -> io::Result<Journal> {
        make_directory(directory)?;
        let path = directory.join(format!("{PREFIX}{}", std::process::id()));
        // A journal of the same name is of a process that is gone, and was restored before.
        let file = File::create(&path)?;
        Ok(Journal { path, file })
    }

    /// Names this process and its `supervisor`: while one of them is at work, nobody else may
    /// restore anything.
    pub fn begin(&mut self, supervisor: u32) -> io::Result<()> {
        let started = |pid: u32| format!("{pid} {}", start_time(pid).unwrap_or_default());
        let (own, supervisor) = (started(std::process::id()), started(supervisor));
        self.add(&format!("{own} {supervisor}\n"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn add(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())
    }
}

/// Whether process `pid`, which started at `start`, runs: a zombie does not.
fn at_work(pid: u32, start: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    start_time(pid) == Some(start) && !matches!(state, None | Some('Z' | 'X'))
}

/// The findings of [`super::restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Threads that had their slices back.
    pub threads: usize,
    /// CPUs whose reservation for vCPUs was given back.
    pub cpus: usize,
    /// Guards that are still at work, or whose supervisors are: nothing of theirs was touched.
    pub active: Vec<u32>,
    /// Things that could not be restored, and why.
    pub failed: Vec<String>,
}

/// Undoes what dead guards left, by the journals in `directory`, and removes these.
pub fn restore(directory: &Path) -> io::Result<Restored> {
    let mut restored = Restored::default();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(restored),
        entries => entries?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let text = fs::read_to_string(&path)?;
        let first = text.lines().next().unwrap_or_default();
        let numbers: Vec<u64> = first.split(' ').filter_map(|n| n.parse().ok()).collect();
        let working = numbers.chunks_exact(2).any(|own| at_work(own[0] as u32, own[1]));
        match numbers.first() {
            Some(&pid) if working => restored.active.push(pid as u32),
            _ => restore_one(&path, &mut restored)?,
        }
    }
    Ok(restored)
}

/// Undoes what the journal at `path` tells of, and removes it.
pub fn restore_one(path: &Path, restored: &mut Restored) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let before_this = restored.failed.len();
    for server in text.lines().skip(1).filter_map(Server::parse) {
        match server.restore() {
            Ok(had) => restored.cpus += usize::from(had),
            Err(error) => {
                restored.failed.push(format!("what is reserved on CPU {}: {error}", server.cpu));
            }
        }
    }
    if restored.failed.len() == before_this {
        fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_its_turn_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let has = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let turn = Turn::take(dir.path()).unwrap();
                        assert_eq!(has.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        has.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        let missing = Turn::take(&dir.path().join("none")).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_journal_of_a_dead_guard_is_removed_and_that_of_a_living_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        // Process 1 did not start then. No such CPU has a reservation. The last line is torn.
        let dead = "1 18446744073709551615 1 7\nserver 4000000 1 2 3 4\nserver 1";
        fs::write(dir.path().join("guard-1"), dead).unwrap();
        let mut journal = Journal::create(dir.path()).unwrap();
        journal.begin(u32::MAX).unwrap();
        let active = Restored { active: vec![std::process::id()], ..Restored::default() };
        assert_eq!(restore(dir.path()).unwrap(), active);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        restore_one(journal.path(), &mut Restored::default()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(restore(Path::new("/nonexistent/reprieve")).unwrap(), Restored::default());
    }
}
