// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory of the console logs of a command that has none for results.
//!
//! The directory is removed when the command ends, and stays where the user needs the logs. If the
//! program is killed, the next command removes it: a lock tells whose directory is still in use.

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PREFIX: &str = "reprieve-lab-";
/// Length of the random rest of the name.
const RANDOM: usize = 6;
/// A locked file in the directory, as long as that is to be removed. No other directory of the
/// lab's has a file of this name.
const LOCK: &str = "logs-are-being-written";

pub struct LogDirectory {
    directory: TempDir,
    _lock: File,
}

impl LogDirectory {
    pub fn new() -> Result<LogDirectory> {
        LogDirectory::below(&std::env::temp_dir()).context("log directory")
    }

    fn below(parent: &Path) -> std::io::Result<LogDirectory> {
        remove_abandoned(parent);
        let mut name = tempfile::Builder::new();
        let directory = name.prefix(PREFIX).rand_bytes(RANDOM).tempdir_in(parent)?;
        // The lock file has its name only when it is locked: before, others leave the directory
        // alone.
        let unlocked = directory.path().join("new");
        let lock = File::create_new(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(&unlocked, directory.path().join(LOCK))?;
        Ok(LogDirectory { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Leaves the directory to the user.
    pub fn keep(self) -> PathBuf {
        // If that fails, the next command removes it.
        let _ = fs::remove_file(self.path().join(LOCK));
        self.directory.keep()
    }
}

/// Removes the directories of this user's programs that were killed.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if random.is_some_and(|random| random.len() == RANDOM)
            && entry.metadata().is_ok_and(|it| it.is_dir() && is_own(&it))
            && is_abandoned(&path.join(LOCK))
        {
            // Another command may do so, too.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_abandoned(lock: &Path) -> bool {
    let mut options = File::options();
    // Whatever is there.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = options.read(true).custom_flags(flags.bits() as i32).open(lock) else {
        return false;
    };
    // A directory is kept by the removal of its lock: so the look comes after the lock is taken.
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && file.metadata().is_ok_and(|it| it.is_file() && is_own(&it) && it.nlink() == 1)
}

fn is_own(of: &fs::Metadata) -> bool {
    of.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_directory_is_removed_and_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let below = || LogDirectory::below(parent.path()).unwrap();
        let (used, kept) = (below(), below().keep());
        let foreign = parent.path().join("reprieve-lab-of-the-users");
        fs::create_dir(&foreign).unwrap();
        let mut abandoned = below();
        abandoned.directory.disable_cleanup(true);
        let left = abandoned.path().to_path_buf();
        fs::write(left.join("vm.1.log"), "x").unwrap();
        drop(abandoned);
        assert!(left.is_dir());

        let mut ended = below().path().to_path_buf();
        // A program that another test is about to start holds the lock until it runs.
        while left.exists() {
            ended = below().path().to_path_buf();
            std::thread::yield_now();
        }
        assert!(!ended.exists());
        assert!(used.path().is_dir() && kept.is_dir() && foreign.is_dir());
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
    }
}
