// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the region: the memory of a PCI device that has no driver, which the kernel offers as a
//! file. Write-combining (`resource2_wc`) where there is that choice: on some processors the other
//! file's memory is not cached, and each hint would wait for its store.

use super::layout::{BYTES, MAGIC, Region, VERSION};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const DEVICES: &str = "/sys/bus/pci/devices";
/// How an ivshmem device begins its `modalias`.
const ALIAS: &str = "pci:v00001AF4d00001110";
/// `PROC_PID_INIT_INO` of the kernel: the first PID namespace.
const FIRST_NAMESPACE: u64 = 0xeffffffc;

/// Why this process has no region.
#[derive(Debug)]
#[non_exhaustive]
pub enum Missing {
    /// This is no guest, or its host offers none.
    Device,
    /// `REPRIEVE_HINT_REGION=off` is set.
    Off,
    /// The process is in a container of the guest: the host knows its threads by other numbers.
    Namespace,
    /// The device is there, and may not be used, or is something else.
    Refused(PathBuf, io::Error),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missing::Device => f.write_str(
                "no region: this is no guest, or its host offers none (`reprieve hint region create`, on the host)",
            ),
            Missing::Off => f.write_str("no region: REPRIEVE_HINT_REGION=off is set"),
            Missing::Namespace => f.write_str(
                "no region in a PID namespace (a container): the host knows threads by their numbers outside of it",
            ),
            Missing::Refused(path, error) if error.kind() == io::ErrorKind::PermissionDenied => write!(
                f,
                "{}: {error}: have an administrator of the guest make it readable and writable for this user; a kernel in lockdown (secure boot) refuses everybody",
                path.display()
            ),
            Missing::Refused(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Missing {}

/// The region of this guest, mapped for good; `named`: the file, if the user names one.
pub(super) fn map(named: Option<&Path>) -> Result<&'static Region, Missing> {
    let path = match named {
        Some(path) => path.to_path_buf(),
        None => find()?,
    };
    // Without a /proc in which this process is, nobody knows.
    let namespace = std::fs::metadata("/proc/self/ns/pid").map(|m| m.ino());
    if namespace.ok() != Some(FIRST_NAMESPACE) {
        return Err(Missing::Namespace);
    }
    open(&path).map_err(|error| Missing::Refused(path, error))
}

/// The device's file.
fn find() -> Result<PathBuf, Missing> {
    if !is_guest() {
        return Err(Missing::Device);
    }
    let devices = std::fs::read_dir(DEVICES).map_err(|_| Missing::Device)?;
    let mut last = Missing::Device;
    for device in devices.flatten().map(|entry| entry.path()) {
        let alias = std::fs::read_to_string(device.join("modalias"));
        if !alias.is_ok_and(|alias| alias.starts_with(ALIAS)) {
            continue;
        }
        let file = ["resource2_wc", "resource2"].map(|name| device.join(name));
        let file = file.into_iter().find(|file| file.exists()).ok_or(Missing::Device)?;
        // A device with this alias may serve other purposes, too.
        match File::open(&file).and_then(|file| map_file(&file, libc::PROT_READ)) {
            Ok(at) => {
                let ours = is_region(at);
                unmap(at);
                if ours {
                    return Ok(file);
                }
            }
            Err(error) => last = Missing::Refused(file, error),
        }
    }
    Err(last)
}

#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe)] // safe in newer Rust
fn is_guest() -> bool {
    // SAFETY: all x86-64 processors have the instruction, and it changes no memory.
    unsafe { std::arch::x86_64::__cpuid(1) }.ecx >> 31 == 1
}

#[cfg(not(target_arch = "x86_64"))]
fn is_guest() -> bool {
    true
}

fn open(path: &Path) -> io::Result<&'static Region> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let at = map_file(&file, libc::PROT_READ | libc::PROT_WRITE)?;
    if !is_region(at) {
        unmap(at);
        let what = "no region of this version: `reprieve hint region create` makes one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    // SAFETY: mapped for good, as large as a region, made of atomic integers.
    Ok(unsafe { &*at })
}

fn map_file(file: &File, protection: i32) -> io::Result<*const Region> {
    // Beyond the end of a file, or of a device's memory, there is nothing to map.
    if file.metadata()?.len() < BYTES as u64 {
        let what = "smaller than a region";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    // SAFETY: a new mapping.
    let at = unsafe {
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        libc::mmap(null, BYTES, protection, libc::MAP_SHARED, fd, 0)
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

fn unmap(at: *const Region) {
    // SAFETY: made by `map_file`, and nobody has a reference to it.
    unsafe { libc::munmap(at.cast_mut().cast(), BYTES) };
}

fn is_region(at: *const Region) -> bool {
    // SAFETY: a mapping of that size.
    let region = unsafe { &*at };
    let words = (region.magic.load(Ordering::Relaxed), region.version.load(Ordering::Relaxed));
    words == (MAGIC, VERSION)
}
