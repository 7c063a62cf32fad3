// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's end of a region: a file, for QEMU to map.
//!
//! Calls read and write the file, which is never mapped: the VMM may cut it short at any time.

use super::layout::{BYTES, MAGIC, Region, VCPUS, VERSION};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Makes the region `path`, for its owner only. False: there is one.
///
/// # Errors
/// If it cannot be written, or has something else in it.
pub fn create(path: &Path) -> io::Result<bool> {
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if is_region(&file)? {
        return Ok(false);
    }
    // QEMU makes the file that it does not find, and a `create` that was killed leaves one.
    let about = file.metadata()?;
    let mut text = vec![0; BYTES + 1];
    let read = read_up_to(&file, &mut text)?;
    if !about.is_file() || text[..read].iter().any(|&byte| byte != 0) || read > BYTES {
        let what = "there is something else in that file: choose another";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    file.set_len(BYTES as u64)?;
    let head = [VERSION.to_ne_bytes(), MAGIC.to_ne_bytes()];
    for (word, offset) in head.iter().zip([offset_of!(Region, version), offset_of!(Region, magic)])
    {
        file.write_all_at(word, offset as u64)?;
    }
    Ok(true)
}

/// Whether the file is a region of this version.
///
/// # Errors
/// If it cannot be read.
pub fn is_region(file: &File) -> io::Result<bool> {
    let mut head = [0; 8];
    let whole = file.metadata()?.len() >= BYTES as u64 && read_up_to(file, &mut head)? == 8;
    Ok(whole && head[..4] == MAGIC.to_ne_bytes() && head[4..] == VERSION.to_ne_bytes())
}

/// Writes the host's answers: a beat that differs from the last one, and state and runnable vCPUs
/// by vCPU.
///
/// # Errors
/// If the file cannot be written.
pub fn publish(file: &File, beat: u64, vcpus: &[(u32, u32)]) -> io::Result<()> {
    let words = vcpus.iter().take(VCPUS).flat_map(|&(state, runnable)| [state, runnable]);
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    file.write_all_at(&bytes, offset_of!(Region, vcpus) as u64)?;
    file.write_all_at(&beat.to_ne_bytes(), offset_of!(Region, beat) as u64)
}

/// All of it, as of about now.
///
/// # Errors
/// If the file cannot be read, or is no region.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = vec![0; BYTES];
    if !is_region(&file)? || read_up_to(&file, &mut bytes)? < BYTES {
        let what = "no region of this version: `reprieve hint region create` makes one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes)
}

fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
