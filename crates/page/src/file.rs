// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all.

use std::fs::{File, Permissions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Replaces the file `path` by `content`, whole or not at all. Of a symbolic link, the file that it
/// leads to is replaced (a link to nothing is replaced itself). A device or a pipe gets the content
/// instead, and so does what `/dev/stdout` and `/dev/stderr` stand for, whatever it is.
///
/// # Errors
/// When the file cannot be written or renamed. The old file stays, and nothing else is left. Also
/// for a link that the kernel does not follow for this process (`fs.protected_symlinks`).
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    // Not opened again: a file there may be a log that other output goes to.
    match path.to_str() {
        Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => {
            return flushed(std::io::stdout().lock(), content);
        }
        Some("/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2") => {
            return flushed(std::io::stderr().lock(), content);
        }
        _ => {}
    }
    let (path, old) = &match std::fs::metadata(path) {
        Ok(old) if !old.is_file() && !old.is_dir() => {
            return File::options().write(true).open(path)?.write_all(content);
        }
        Ok(old) => (std::fs::canonicalize(path)?, Some(old)),
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
        Err(error) => return Err(error),
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut new = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    new.write_all(content)?;
    new.as_file().sync_all()?;
    // A user who may not read the old file may not read the new one, if it stays its owner's.
    let own = new.as_file().metadata()?;
    if let Some(old) = old.as_ref().filter(|o| (o.uid(), o.gid()) == (own.uid(), own.gid())) {
        new.as_file().set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
    }
    new.persist(path).map(drop).map_err(|error| error.error)
}

fn flushed(mut out: impl Write, content: &[u8]) -> Result<()> {
    out.write_all(content)?;
    out.flush()
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
    fn who_could_not_read_the_old_file_cannot_read_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write(&file, b"old").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        write(&file, b"new").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
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
    fn a_link_that_the_kernel_does_not_follow_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::os::unix::fs::symlink(&first, &second).unwrap();
        std::os::unix::fs::symlink(&second, &first).unwrap();
        assert!(write(&first, b"new").is_err());
        assert!(std::fs::symlink_metadata(&first).unwrap().is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
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
