// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: everything that the lab has fetched or made, outside the source tree.
//!
//! An item is a directory that is complete or absent: it is filled under another name and renamed
//! when complete; the next attempt removes what a crash has left. Each item has a lock of its own,
//! so that two runs never make the same item twice, and can make different items at the same time.
//! Locks are `flock`s: the kernel releases them when their process ends.

use super::Context;
use crate::error::{Error, Result};
use crate::limit::scaled;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for another run that makes the needed item: a slow download.
const LOCK_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The kind of an item; each kind has a directory in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Package lists of the lab's own apt configuration, and the offers read from them.
    Apt,
    /// An unpacked kernel package.
    Kernel,
    /// Unpacked packages of programs: QEMU and workloads, or a compiler.
    Tools,
    /// The needs of building a module for one kernel.
    Headers,
    /// The lab's kernel module, built for one kernel.
    Module,
}

impl Kind {
    fn dir(self) -> &'static str {
        match self {
            Kind::Apt => "apt",
            Kind::Kernel => "kernels",
            Kind::Tools => "tools",
            Kind::Headers => "headers",
            Kind::Module => "modules",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Opens (and creates) the cache at `$REPRIEVE_CACHE`, else `$XDG_CACHE_HOME/reprieve`, else
    /// `~/.cache/reprieve`.
    pub fn open() -> Result<Cache> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = set("REPRIEVE_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|d| d.join("reprieve")))
            .or_else(|| set("HOME").map(|d| d.join(".cache/reprieve")))
            .ok_or_else(|| {
                Error::missing("a place for the cache", "set REPRIEVE_CACHE to a directory")
            })?;
        Cache::at(root)
    }

    /// Opens (and creates) the cache at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Result<Cache> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(|error| {
            let place = format!("a place for the cache ({}: {error})", root.display());
            Error::missing(place, "set REPRIEVE_CACHE to a directory that can be written")
        })?;
        let root = root.canonicalize().map_err(Error::io(&root))?;
        Ok(Cache { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of an item, which need not exist.
    pub fn path(&self, kind: Kind, name: &str) -> PathBuf {
        self.root.join(kind.dir()).join(name)
    }

    /// The item's directory. If it does not exist, `make` fills a new one.
    pub fn get_or_make(
        &self,
        kind: Kind,
        name: &str,
        cx: &Context,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.path(kind, name);
        if path.is_dir() {
            return Ok(path);
        }
        let _lock = self.lock(kind, name, cx)?;
        if path.is_dir() {
            return Ok(path);
        }
        let partial = self.root.join(kind.dir()).join(format!("{name}{PARTIAL}"));
        remove(&partial)?;
        let made = fs::create_dir_all(&partial)
            .map_err(Error::io(&partial))
            .and_then(|()| make(&partial))
            .and_then(|()| fs::rename(&partial, &path).map_err(Error::io(&path)));
        if let Err(e) = made {
            let _ = remove(&partial);
            return Err(e);
        }
        Ok(path)
    }

    /// Locks the item, once no other run has it locked. Dropping the returned file unlocks it.
    pub fn lock(&self, kind: Kind, name: &str, cx: &Context) -> Result<File> {
        let dir = self.root.join(LOCKS);
        fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        let path = dir.join(format!("{}-{name}", kind.dir()));
        let open = File::options().create(true).append(true).open(&path);
        let file = open.map_err(Error::io(&path))?;
        let start = Instant::now();
        let mut told = false;
        while !take(&file, FlockOperation::NonBlockingLockExclusive).map_err(Error::io(&path))? {
            if !told {
                let what = kind.dir();
                cx.progress.step(&format!("waiting for another run to prepare {what}/{name}"));
                told = true;
            }
            if start.elapsed() > scaled(LOCK_LIMIT) {
                let what = format!("another run's work on {}", path.display());
                return Err(Error::Timeout { what, after: scaled(LOCK_LIMIT), log: None });
            }
            cx.cancel.sleep(Duration::from_millis(100))?;
        }
        Ok(file)
    }
}

const PARTIAL: &str = ".partial";
const LOCKS: &str = "locks";

/// Whether the lock was taken; false only for a non-blocking operation on a lock that is taken.
fn take(file: &File, operation: FlockOperation) -> std::io::Result<bool> {
    match rustix::io::retry_on_intr(|| flock(file, operation)) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Removes a directory if it is there. Packages hold directories without write permission.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            make_writable(path);
            fs::remove_dir_all(path).map_err(Error::io(path))
        }
        Err(e) => Err(Error::io(path)(e)),
    }
}

fn make_writable(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o755));
    for item in fs::read_dir(dir).into_iter().flatten().flatten() {
        if item.file_type().is_ok_and(|t| t.is_dir()) {
            make_writable(&item.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::testing::context;

    #[test]
    fn a_place_that_cannot_be_used_is_named_with_the_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        let said = Cache::at(file.join("cache")).unwrap_err().to_string();
        assert!(said.contains("file/cache: ") && said.contains("REPRIEVE_CACHE"), "{said}");
    }

    #[test]
    fn an_item_is_made_once_and_complete_or_absent() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = Cache::at(scratch.path()).unwrap();
        let failed = cache.get_or_make(Kind::Tools, "a", &context(), |dir| {
            fs::write(dir.join("half"), "x").unwrap();
            Err(Error::Other("broken".into()))
        });
        assert_eq!(failed.unwrap_err().to_string(), "broken");
        assert!(!scratch.path().join("tools/a").exists());
        // The remains of a crash is not mistaken for part of the item.
        let partial = scratch.path().join("tools/a.partial");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("stale"), "x").unwrap();
        let path = cache
            .get_or_make(Kind::Tools, "a", &context(), |dir| {
                fs::write(dir.join("whole"), "x").map_err(Error::io(dir))
            })
            .unwrap();
        assert!(path.join("whole").exists() && !path.join("stale").exists());
        let again = cache.get_or_make(Kind::Tools, "a", &context(), |_| panic!("made twice"));
        assert_eq!(again.unwrap(), path);
    }

    #[test]
    fn two_runs_make_an_item_once() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = Cache::at(scratch.path()).unwrap();
        let made = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    cache.get_or_make(Kind::Module, "x", &context(), |_| {
                        std::thread::sleep(Duration::from_millis(20));
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok(())
                    })
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
