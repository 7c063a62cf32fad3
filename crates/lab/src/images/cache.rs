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
use rustix::fs::{FlockOperation, flock, statvfs};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for another run that makes the needed item: a slow download.
const LOCK_LIMIT: Duration = Duration::from_secs(20 * 60);

/// With less free space than this after a failure, the disk is taken to be full, whatever the error
/// message.
const FULL: u64 = 16 << 20;

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
    pub const ALL: [Kind; 5] = [Kind::Apt, Kind::Kernel, Kind::Tools, Kind::Headers, Kind::Module];

    fn dir(self) -> &'static str {
        match self {
            Kind::Apt => "apt",
            Kind::Kernel => "kernels",
            Kind::Tools => "tools",
            Kind::Headers => "headers",
            Kind::Module => "modules",
        }
    }

    /// For people, singular.
    pub fn describe(self) -> &'static str {
        match self {
            Kind::Apt => "package lists",
            Kind::Kernel => "kernel",
            Kind::Tools => "programs",
            Kind::Headers => "kernel headers",
            Kind::Module => "kernel module",
        }
    }
}

/// A complete item.
#[derive(Clone, Debug)]
pub struct Entry {
    pub kind: Kind,
    pub name: String,
    /// Bytes on disk.
    pub size: u64,
}

#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Keeps items in their place as long as it exists; see [`Cache::hold`].
pub struct Hold {
    _file: File,
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
            let e = self.explain_full(e, kind, name);
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
        let file = open_lock(&path)?;
        let start = Instant::now();
        let mut told = false;
        while !take(&file, FlockOperation::NonBlockingLockExclusive).map_err(Error::io(&path))? {
            if !told {
                let what = kind.describe();
                cx.progress.step(&format!("waiting for another run to prepare {what} {name}"));
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

    /// Makes [`Cache::clean`] fail in other processes until the result is dropped.
    pub fn hold(&self) -> Result<Hold> {
        let path = self.root.join("in-use");
        let file = open_lock(&path)?;
        take(&file, FlockOperation::LockShared).map_err(Error::io(&path))?;
        Ok(Hold { _file: file })
    }

    /// All complete items, by kind and name.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let dir = self.root.join(kind.dir());
            let Ok(read) = fs::read_dir(&dir) else { continue };
            let mut entries = Vec::new();
            for item in read {
                let item = item.map_err(Error::io(&dir))?;
                let name = item.file_name().to_string_lossy().into_owned();
                if !name.ends_with(PARTIAL) && item.path().is_dir() {
                    entries.push(Entry { kind, name, size: disk_usage(&item.path()) });
                }
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            all.extend(entries);
        }
        Ok(all)
    }

    /// Removes everything and returns the bytes freed. Fails when a run is using the cache.
    pub fn clean(&self) -> Result<u64> {
        let path = self.root.join("in-use");
        let file = open_lock(&path)?;
        if !take(&file, FlockOperation::NonBlockingLockExclusive).map_err(Error::io(&path))? {
            return Err(Error::Other(format!(
                "{} is in use by a run: wait for it to end",
                self.root.display()
            )));
        }
        let mut freed = 0;
        for kind in Kind::ALL {
            let dir = self.root.join(kind.dir());
            freed += disk_usage(&dir);
            remove(&dir)?;
        }
        remove(&self.root.join(LOCKS))?;
        Ok(freed)
    }

    /// Bytes that an ordinary user can still write here.
    pub fn free_space(&self) -> Option<u64> {
        let stat = statvfs(&self.root).ok()?;
        Some(stat.f_bavail * stat.f_frsize)
    }

    fn explain_full(&self, e: Error, kind: Kind, name: &str) -> Error {
        let said = match &e {
            Error::Io { source, .. } => source.raw_os_error() == Some(libc::ENOSPC),
            Error::Program { detail, .. } => {
                detail.contains("No space left") || detail.contains("enough free space")
            }
            _ => false,
        };
        let Some(free) = self.free_space() else { return e };
        if !said && (free > FULL || matches!(e, Error::Cancelled)) {
            return e;
        }
        Error::Other(format!(
            "the disk is full: {} has {} MB free, too little for {} {name}; make room, or set REPRIEVE_CACHE to another place",
            self.root.display(),
            free >> 20,
            kind.describe(),
        ))
    }
}

const PARTIAL: &str = ".partial";
const LOCKS: &str = "locks";

fn open_lock(path: &Path) -> Result<File> {
    File::options().create(true).append(true).open(path).map_err(Error::io(path))
}

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

/// Bytes of a tree on disk.
fn disk_usage(path: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
    let below: u64 = if meta.is_dir() {
        fs::read_dir(path).into_iter().flatten().flatten().map(|i| disk_usage(&i.path())).sum()
    } else {
        0
    };
    meta.blocks() * 512 + below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::testing::{Scratch, context};

    #[test]
    fn a_place_that_cannot_be_used_is_named_with_the_remedy() {
        let scratch = Scratch::new();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        let said = Cache::at(file.join("cache")).unwrap_err().to_string();
        assert!(said.contains("file/cache: ") && said.contains("REPRIEVE_CACHE"), "{said}");
    }

    #[test]
    fn an_item_is_made_once_and_complete_or_absent() {
        let scratch = Scratch::new();
        let cache = Cache::at(scratch.path()).unwrap();
        let failed = cache.get_or_make(Kind::Tools, "a", &context(), |dir| {
            fs::write(dir.join("half"), "x").unwrap();
            Err(Error::Other("broken".into()))
        });
        assert_eq!(failed.unwrap_err().to_string(), "broken");
        assert!(cache.list().unwrap().is_empty());
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
        let list = cache.list().unwrap();
        assert_eq!((list.len(), list[0].name.as_str(), list[0].kind), (1, "a", Kind::Tools));
        assert!(list[0].size > 0);
    }

    #[test]
    fn two_runs_make_an_item_once() {
        let scratch = Scratch::new();
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

    #[test]
    fn clean_spares_a_cache_in_use() {
        let scratch = Scratch::new();
        let cache = Cache::at(scratch.path()).unwrap();
        cache.get_or_make(Kind::Kernel, "k", &context(), |_| Ok(())).unwrap();
        let hold = cache.hold().unwrap();
        assert!(cache.clean().unwrap_err().to_string().contains("in use"));
        drop(hold);
        // A program that another test is about to start holds the lock until it runs.
        while let Err(error) = cache.clean() {
            assert!(error.to_string().contains("in use"), "{error}");
            std::thread::yield_now();
        }
        assert!(cache.list().unwrap().is_empty());
    }

    #[test]
    fn a_full_disk_is_named() {
        let scratch = Scratch::new();
        let cache = Cache::at(scratch.path()).unwrap();
        let full = cache.get_or_make(Kind::Kernel, "6.1", &context(), |dir| {
            Err(Error::io(dir)(std::io::Error::from_raw_os_error(libc::ENOSPC)))
        });
        let text = full.unwrap_err().to_string();
        assert!(text.contains("disk is full") && text.contains("REPRIEVE_CACHE"), "{text}");
    }
}
