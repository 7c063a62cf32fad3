// SPDX-License-Identifier: MIT OR Apache-2.0
//! Initial RAM file systems for the lab's kernels.
//!
//! A cpio archive (newc) is written directly from files of the cache, uncompressed: under TCG
//! unpacking costs more than copying (uptime at the first line of init, lab host of 115 MB: 3.8 s,
//! with zstd 4.7 to 6.9 s; guest of 30 MB: 2.9 s, with zstd 3.1 s, with gzip 3.7 s).

use crate::error::{Error, Result};
use cpio::newc::{Builder, trailer};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

const DIRECTORY: u32 = 0o040755;
const CHARACTER_DEVICE: u32 = 0o020600;
const REGULAR: u32 = 0o100000;

enum Entry {
    Directory,
    Device { major: u32, minor: u32 },
    File { from: PathBuf, mode: u32 },
    Bytes { data: Vec<u8>, mode: u32 },
}

/// The content of an initramfs. Parent directories are added automatically; a path that is added
/// twice keeps the second content.
#[derive(Default)]
pub struct Initramfs {
    // Sorted, so that directories come before their content.
    entries: BTreeMap<PathBuf, Entry>,
}

impl Initramfs {
    /// With `/dev/console`, which the kernel opens for init before init can mount anything.
    pub fn new() -> Initramfs {
        let mut fs = Initramfs::default();
        fs.add("/dev/console", Entry::Device { major: 5, minor: 1 });
        fs
    }

    /// Adds a file of this machine; it is executable if it is so here. Links are followed.
    pub fn file(&mut self, from: &Path, inside: impl AsRef<Path>) -> Result<()> {
        let meta = fs::metadata(from).map_err(Error::io(from))?;
        if !meta.is_file() {
            return Err(Error::Format { path: from.into(), message: "not a file".into() });
        }
        let mode = if meta.permissions().mode() & 0o111 != 0 { 0o755 } else { 0o644 };
        self.add(inside, Entry::File { from: from.into(), mode });
        Ok(())
    }

    pub fn bytes(&mut self, inside: impl AsRef<Path>, data: impl Into<Vec<u8>>, mode: u32) {
        self.add(inside, Entry::Bytes { data: data.into(), mode });
    }

    /// Writes the archive to the new file `path`.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_to(File::create(path).map_err(Error::io(path))?, path)
    }

    /// Writes the archive to `out`, which errors name `path`.
    pub fn write_to(&self, out: impl Write, path: &Path) -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, out);
        for (inode, (inside, entry)) in (1..).zip(&self.entries) {
            let name = inside.to_string_lossy();
            let header = Builder::new(&name).ino(inode).nlink(1);
            out = write_entry(out, header, entry)?.map_err(Error::io(path))?;
        }
        trailer(out).and_then(|mut out| out.flush()).map_err(Error::io(path))
    }

    fn add(&mut self, inside: impl AsRef<Path>, entry: Entry) {
        // Archive members have relative names.
        let name: PathBuf =
            inside.as_ref().components().filter(|c| matches!(c, Component::Normal(_))).collect();
        for parent in name.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
            self.entries.entry(parent.into()).or_insert(Entry::Directory);
        }
        self.entries.insert(name, entry);
    }
}

/// The outer error concerns the file to add, the inner one the archive.
fn write_entry<W: Write>(out: W, header: Builder, entry: &Entry) -> Result<std::io::Result<W>> {
    Ok(match entry {
        Entry::Directory => header.mode(DIRECTORY).write(out, 0).finish(),
        Entry::Device { major, minor } => {
            let header = header.mode(CHARACTER_DEVICE).rdev_major(*major).rdev_minor(*minor);
            header.write(out, 0).finish()
        }
        Entry::Bytes { data, mode } => {
            let Some(size) = size(data.len() as u64) else { return Err(too_large("a file")) };
            let mut member = header.mode(REGULAR | mode).write(out, size);
            match member.write_all(data) {
                Ok(()) => member.finish(),
                Err(e) => Err(e),
            }
        }
        Entry::File { from, mode } => {
            let data = fs::read(from).map_err(Error::io(from))?;
            let Some(size) = size(data.len() as u64) else {
                return Err(too_large(&from.to_string_lossy()));
            };
            let mut member = header.mode(REGULAR | mode).write(out, size);
            match member.write_all(&data) {
                Ok(()) => member.finish(),
                Err(e) => Err(e),
            }
        }
    })
}

fn size(bytes: u64) -> Option<u32> {
    u32::try_from(bytes).ok()
}

fn too_large(what: &str) -> Error {
    Error::Other(format!("{what} has 4 GiB or more: an initramfs cannot hold it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_reads_back() {
        let scratch = tempfile::tempdir().unwrap();
        let script = scratch.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
        let mut image = Initramfs::new();
        image.file(&script, "/usr/bin/script").unwrap();
        image.bytes("/lib/reprieve/modules", "a\n", 0o644);
        let path = scratch.path().join("initrd");
        image.write(&path).unwrap();

        let mut rest = File::open(&path).unwrap();
        let mut found = Vec::new();
        loop {
            let mut member = cpio::newc::Reader::new(rest).unwrap();
            if member.entry().is_trailer() {
                break;
            }
            let mut data = String::new();
            std::io::Read::read_to_string(&mut member, &mut data).unwrap();
            found.push((member.entry().name().to_string(), member.entry().mode(), data));
            rest = member.finish().unwrap();
        }
        let dir = |name: &str| (name.to_string(), DIRECTORY, String::new());
        let expected = [
            dir("dev"),
            ("dev/console".into(), CHARACTER_DEVICE, String::new()),
            dir("lib"),
            dir("lib/reprieve"),
            ("lib/reprieve/modules".into(), 0o100644, "a\n".into()),
            dir("usr"),
            dir("usr/bin"),
            ("usr/bin/script".into(), 0o100755, "#!/bin/sh\n".into()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn directories_do_not_go_in_as_files() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(Initramfs::new().file(scratch.path(), "/x").is_err());
        assert!(Initramfs::new().file(&scratch.path().join("gone"), "/x").is_err());
    }
}
