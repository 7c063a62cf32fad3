// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, by the kernel's calls.

use crate::error::{Errno, Result};
use crate::helper::with_files;
use crate::kernel::call;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An open file.
#[derive(Debug)]
pub(crate) struct File(i32);

/// The answer of `stat`.
#[derive(Clone, Copy)]
pub(crate) struct About(libc::stat);

impl About {
    pub fn is_file(&self) -> bool {
        self.0.st_mode & libc::S_IFMT == libc::S_IFREG
    }

    pub fn is_directory(&self) -> bool {
        self.0.st_mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub fn mode(&self) -> u32 {
        self.0.st_mode & 0o7777
    }

    pub fn user(&self) -> u32 {
        self.0.st_uid
    }

    pub fn length(&self) -> u64 {
        self.0.st_size as u64
    }

    /// Bytes that it takes of its file system.
    pub fn takes(&self) -> u64 {
        self.0.st_blocks as u64 * 512
    }

    /// Device and number.
    pub fn identity(&self) -> (u64, u64) {
        (self.0.st_dev, self.0.st_ino)
    }
}

/// The room of a file system.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    pub total: u64,
    /// Free, for this user.
    pub free: u64,
}

fn text(path: impl AsRef<Path>) -> Result<CString> {
    CString::new(path.as_ref().as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))
}

/// About the file that a path names or, with `follow`, that a symbolic link leads to.
fn look(path: impl AsRef<Path>, follow: bool) -> Result<About> {
    let path = text(path)?;
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: plain data; a string, and a buffer for the structure.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        call!(SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut found, flags)?;
        Ok(About(found))
    }
}

pub(crate) fn about(path: impl AsRef<Path>) -> Result<About> {
    look(path, true)
}

pub(crate) fn about_link(path: impl AsRef<Path>) -> Result<About> {
    look(path, false)
}

pub(crate) fn remove(path: impl AsRef<Path>) -> Result<()> {
    let path = text(path)?;
    // SAFETY: a string.
    unsafe { call!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) }.map(drop)
}

pub(crate) fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let (from, to, here) = (text(from)?, text(to)?, libc::AT_FDCWD);
    // SAFETY: strings.
    unsafe { call!(SYS_renameat, here, from.as_ptr(), here, to.as_ptr()) }.map(drop)
}

pub(crate) fn make_directory(path: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = text(path)?;
    // SAFETY: a string.
    unsafe { call!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), mode) }.map(drop)
}

pub(crate) fn remove_directory(path: impl AsRef<Path>) -> Result<()> {
    let path = text(path)?;
    // SAFETY: a string.
    unsafe { call!(SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), libc::AT_REMOVEDIR) }.map(drop)
}

/// Reads a small file, or a symbolic link, without the allocator: a fork's child may do so.
pub(crate) fn read_small<'b>(path: &CStr, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let (to, room) = (buffer.as_mut_ptr(), buffer.len());
    let length = with_files(|| {
        let file = File::open_at(path, libc::O_RDONLY, 0)?;
        // SAFETY: a buffer that is valid for its length.
        unsafe { call!(SYS_read, file.0, to, room) }
    });
    buffer.get(..length.ok()?)
}

pub(crate) fn read_link<'b>(path: &CStr, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let (to, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: a string, and a buffer that is valid for its length.
    let length = unsafe { call!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), to, room) }.ok()?;
    buffer.get(..length)
}

/// All of a file.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    with_files(|| File::open(&path, libc::O_RDONLY)?.read_all())
}

/// The names in a directory.
pub(crate) fn names(directory: impl AsRef<Path>) -> Result<Vec<Box<OsStr>>> {
    with_files(|| names_in(&File::open(&directory, libc::O_RDONLY | libc::O_DIRECTORY)?))
}

fn names_in(directory: &File) -> Result<Vec<Box<OsStr>>> {
    let (mut names, mut part) = (Vec::new(), [0u64; 512]);
    loop {
        let (at, room) = (part.as_mut_ptr(), size_of_val(&part));
        // SAFETY: a buffer that is valid for its length.
        let length = unsafe { call!(SYS_getdents64, directory.0, at, room) }?;
        if length == 0 {
            return Ok(names);
        }
        // SAFETY: as above; whatever its bytes are.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), length) };
        let mut rest = bytes;
        // A number and a position, a length, a kind, then the name.
        while let Some(&[low, high]) = rest.get(16..18).and_then(|l| <&[u8; 2]>::try_from(l).ok()) {
            let (entry, next) = rest.split_at(usize::from(u16::from_le_bytes([low, high])));
            let name = entry[19..].split(|&b| b == 0).next().unwrap_or_default();
            names.push(OsStr::from_bytes(name).into());
            rest = next;
        }
    }
}

impl File {
    /// Opens one, which is closed if the process executes another program.
    pub fn open(path: impl AsRef<Path>, flags: i32) -> Result<File> {
        File::open_at(&text(path)?, flags, 0)
    }

    /// Makes one that was not there, with exactly that mode.
    pub fn create(path: impl AsRef<Path>, mode: u32) -> Result<File> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let path = text(path)?;
        let file = File::open_at(&path, flags, mode)?;
        let made = (|| {
            // The umask may have taken bits away.
            if file.about()?.mode() & 0o777 != mode { file.set_mode(mode) } else { Ok(()) }
        })();
        made.map(|()| file)
    }

    fn open_at(path: &CStr, flags: i32, mode: u32) -> Result<File> {
        let (flags, path) = (flags | libc::O_CLOEXEC, path.as_ptr());
        // SAFETY: a string.
        let number = unsafe { call!(SYS_openat, libc::AT_FDCWD, path, flags, mode) }?;
        Ok(File(number as i32))
    }

    /// The file that is open by that number, and is closed with the value.
    pub fn of_number(number: i32) -> File {
        File(number)
    }

    pub fn number(&self) -> i32 {
        self.0
    }

    /// All that is left to read.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        const PART: usize = 16 << 10;
        let mut all: Vec<u8> = Vec::new();
        loop {
            all.reserve(PART);
            let to = all.spare_capacity_mut().as_mut_ptr();
            // SAFETY: a buffer that has room for so many, of which the kernel fills `length`.
            let length = unsafe { call!(SYS_read, self.0, to, PART) }?;
            if length == 0 {
                return Ok(all);
            }
            // SAFETY: as above.
            unsafe { all.set_len(all.len() + length) };
        }
    }

    pub fn about(&self) -> Result<About> {
        // SAFETY: plain data, which the call fills in.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            call!(SYS_fstat, self.0, &raw mut found)?;
            Ok(About(found))
        }
    }

    pub fn set_mode(&self, mode: u32) -> Result<()> {
        // SAFETY: touches no memory.
        unsafe { call!(SYS_fchmod, self.0, mode) }.map(drop)
    }

    pub fn set_length(&self, length: u64) -> Result<()> {
        // SAFETY: touches no memory.
        unsafe { call!(SYS_ftruncate, self.0, length) }.map(drop)
    }

    /// Has the file system reserve so many bytes. One that cannot do so reserves none.
    pub fn reserve(&self, offset: u64, bytes: u64) -> Result<()> {
        loop {
            // SAFETY: touches no memory of ours.
            match unsafe { call!(SYS_fallocate, self.0, 0, offset, bytes) } {
                Ok(_) | Err(Errno(libc::EOPNOTSUPP)) => return Ok(()),
                Err(Errno(libc::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The room of its file system; `None` where that is not told.
    pub fn room(&self) -> Option<Room> {
        // SAFETY: plain data, which the call fills in.
        let found = unsafe {
            let mut found: libc::statfs = std::mem::zeroed();
            call!(SYS_fstatfs, self.0, &raw mut found).ok()?;
            found
        };
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_bsize as u64);
        let room = Room { total: bytes(found.f_blocks), free: bytes(found.f_bavail) };
        (room.total != 0).then_some(room)
    }

    /// Maps so many bytes of it.
    ///
    /// # Safety
    /// With `MAP_FIXED`: nothing that is mapped there is used any more.
    pub unsafe fn map(
        &self,
        at: usize,
        length: usize,
        protection: i32,
        flags: i32,
        offset: u64,
    ) -> Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { call!(SYS_mmap, at, length, protection, flags, self.0, offset) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: ours.
        let _ = unsafe { call!(SYS_close, self.0) };
    }
}

/// A limit of this process, where the kernel tells.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    let told = unsafe { call!(SYS_prlimit64, 0, resource, 0, &raw mut limits) };
    told.ok().map(|_| limits.rlim_cur)
}

/// Unmaps memory.
///
/// # Safety
/// Nothing in it is used any more.
pub(crate) unsafe fn unmap(at: usize, length: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { call!(SYS_munmap, at, length) };
}

pub(crate) fn page_size() -> u64 {
    // SAFETY: asks for a number.
    unsafe { libc::getauxval(libc::AT_PAGESZ) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directorys_names_are_all_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut wanted: Vec<String> =
            (0..300).map(|i| format!("{i}{}", "x".repeat(i % 90))).collect();
        for name in &wanted {
            drop(File::create(directory.path().join(name), 0o600).unwrap());
        }
        let found = names(directory.path()).unwrap();
        let mut found: Vec<_> = found.iter().map(|n| n.to_str().unwrap().to_owned()).collect();
        wanted.extend([".".into(), "..".into()]);
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
    }
}
