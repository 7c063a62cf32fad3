// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all.

use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{Result, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Replaces the file `path` by `content`, whole or not at all. Of a symbolic link, the file that it
/// leads to is replaced. A device, a pipe or a socket gets the content instead.
///
/// The content is written beside the file under a fixed name, then renamed. Because the name is
/// fixed, a crash leaves at most one such file, and the next write takes it over. Of two writers at
/// once, the second waits for the first.
///
/// # Errors
/// When the file cannot be written or renamed. The old file stays, and nothing else is left.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    if std::fs::metadata(path).is_ok_and(|old| !old.is_file() && !old.is_dir()) {
        return File::options().write(true).open(path)?.write_all(content);
    }
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = path.with_file_name(name);
    let mut file = take(&part)?;
    let mut put = || {
        file.set_len(0)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    put().inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

/// Opens `part` for this writer alone.
fn take(part: &Path) -> Result<File> {
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(part)?;
        // Where the file system has no locks, two writers are not kept apart.
        let _ = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
        let mine = file.metadata()?;
        // The writer before has renamed or removed what was opened here.
        let is_mine = |now: std::fs::Metadata| (now.dev(), now.ino()) == (mine.dev(), mine.ino());
        if std::fs::metadata(part).is_ok_and(is_mine) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        std::fs::create_dir(file("taken")).unwrap();
        write(&file("file"), b"old").unwrap();
        write(&file("file"), b"new").unwrap();
        assert_eq!(std::fs::read(file("file")).unwrap(), b"new");
        // A directory cannot be replaced by a file.
        assert!(write(&file("taken"), b"x").is_err());
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = entries.map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["file", "taken"]);
    }

    #[test]
    fn a_pipe_gets_the_content_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        let reader = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::read(pipe).unwrap())
        };
        write(&pipe, b"content").unwrap();
        assert_eq!(reader.join().unwrap(), b"content");
        assert!(!std::fs::metadata(&pipe).unwrap().is_file());
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn writers_at_once_leave_the_whole_content_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::thread::scope(|scope| {
            for letter in *b"abcd" {
                let file = &file;
                scope.spawn(move || {
                    for length in 1..50 {
                        write(file, &vec![letter; length * 100]).unwrap();
                        let found = std::fs::read(file).unwrap();
                        assert_eq!(found.len() % 100, 0);
                        assert!(found.iter().all(|byte| *byte == found[0]));
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
