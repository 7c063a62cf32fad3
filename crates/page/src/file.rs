// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are there whole or not at all.

use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Who may write into the directory may have put a link or a pipe there.
const NO_LINK: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits() as i32;

/// Replaces the file `path` by `content`, whole or not at all. Of a symbolic link, the file that it
/// leads to is replaced (a link to nothing is replaced itself). A device or a pipe gets the content
/// instead, and so does what `/dev/stdout` and `/dev/stderr` stand for, whatever it is.
///
/// The content is written beside the file under a fixed name, then renamed. Because the name is
/// fixed, a crash leaves at most one such file, and the next write takes it over. Of two writers at
/// once, the second waits for the first.
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
    let path = &match std::fs::metadata(path) {
        Ok(old) if !old.is_file() && !old.is_dir() => {
            return File::options().write(true).open(path)?.write_all(content);
        }
        // Whatever has this name by then is replaced, also another writer's file.
        Ok(_) if !std::fs::symlink_metadata(path)?.is_symlink() => path.to_owned(),
        Ok(_) => follow(path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error),
    };
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = path.with_file_name(name);
    let mut file = take(&part)?;
    let mut put = || {
        file.set_len(0)?;
        file.write_all(content)?;
        file.sync_all()?;
        // Who may not read the old file may not read the new one, if it stays its owner's.
        let (old, new) = (std::fs::metadata(path), file.metadata()?);
        if let Some(old) = old.ok().filter(|old| (old.uid(), old.gid()) == (new.uid(), new.gid())) {
            file.set_permissions(Permissions::from_mode(old.mode() & 0o777))?;
        }
        std::fs::rename(&part, path)
    };
    put().inspect_err(|_| {
        let _ = std::fs::remove_file(&part);
    })
}

/// The file to which a link leads. That is found by reading links, so the kernel has to have
/// followed them to the same file. Another writer may replace that in between.
fn follow(link: &Path) -> Result<PathBuf> {
    for _ in 0..100 {
        let old = std::fs::metadata(link)?;
        let path = std::fs::canonicalize(link)?;
        let found = std::fs::symlink_metadata(&path)?;
        if (found.dev(), found.ino()) == (old.dev(), old.ino()) {
            return Ok(path);
        }
    }
    Err(ErrorKind::PermissionDenied.into())
}

fn flushed(mut out: impl Write, content: &[u8]) -> Result<()> {
    out.write_all(content)?;
    out.flush()
}

/// Opens `part` for this writer alone.
fn take(part: &Path) -> Result<File> {
    loop {
        let mut options = File::options();
        options.create(true).truncate(false).write(true).custom_flags(NO_LINK);
        let file = options.open(part)?;
        let mine = file.metadata()?;
        // Another's stays another's, who could change the content later, or hold the lock for ever.
        if !mine.is_file() || mine.uid() != rustix::process::geteuid().as_raw() {
            let what = format!("{} is another's: remove it", part.display());
            return Err(std::io::Error::new(ErrorKind::AlreadyExists, what));
        }
        // Where the file system has no locks, two writers are not kept apart.
        let _ = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
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
    fn a_link_in_place_of_the_part_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("file"), dir.path().join("other"));
        std::fs::write(&other, b"another's").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(".file.part")).unwrap();
        assert!(write(&file, b"new").is_err());
        assert_eq!(std::fs::read(&other).unwrap(), b"another's");
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
