// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mapping of the file, which grows.
//!
//! The file is sparse and as long as its layout. A process maps a chunk of it when it first looks
//! there. So it needs address space for what is in use (`ulimit -v`), and `mlockall` needs memory
//! for no more.
//!
//! A value lies in one chunk as a whole. Chunks are mapped one behind the other where addresses are
//! free, so that a value's offset is told by its address; others are searched for.
//!
//! **Invariant: who cannot map a chunk does as if it did not know what is in it.** A call fails
//! with `ENOMEM`. A lock is not taken from a dead holder whose changes cannot be undone; a thread
//! whose place cannot be seen counts as alive, and as a reader.

use super::layout::{CHUNK, SIZE};
use crate::error::{CORRUPT, Errno, Result};
use crate::file::{self, File};
use crate::kernel::call;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::*;

const COUNT: usize = (SIZE / CHUNK) as usize;

pub(super) struct Chunks {
    /// Null: not mapped. Not on the stack: a thread's first call makes it.
    bases: Box<[AtomicPtr<u8>]>,
    /// Where the first one would be if all were one mapping.
    origin: usize,
}

/// Maps a chunk, at an address if that is free.
fn map(file: &File, chunk: usize, wanted: usize) -> Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which replaces nothing.
    let mapped =
        unsafe { file.map(wanted, CHUNK as usize, protection, flags, chunk as u64 * CHUNK) };
    mapped.map(|base| base as *mut u8)
}

fn unmap(base: *mut u8, length: usize) {
    // SAFETY: a mapping of this module's that nobody uses.
    unsafe { file::unmap(base as usize, length) };
}

impl Chunks {
    /// Maps the first chunk.
    pub fn new(file: &File) -> Result<Chunks> {
        // Below what is mapped by now there is room, as a rule.
        let top = map(file, 0, 0)?;
        let origin = (top as usize).saturating_sub(SIZE as usize);
        let first = map(file, 0, origin)?;
        unmap(top, CHUNK as usize);
        let unmapped = || AtomicPtr::new(std::ptr::null_mut());
        let bases: Box<[_]> = std::iter::repeat_with(unmapped).take(COUNT).collect();
        bases[0].store(first, Relaxed);
        Ok(Chunks { bases, origin: first as usize })
    }

    pub fn first(&self) -> *mut u8 {
        self.bases[0].load(Relaxed)
    }

    /// Where so many bytes at an offset are. `file`: a chunk that is not mapped may be mapped from
    /// this, if there is one.
    #[inline]
    pub fn at(
        &self,
        offset: u64,
        bytes: u64,
        file: impl FnOnce() -> Option<File>,
    ) -> Result<*mut u8> {
        let (chunk, within) = ((offset / CHUNK) as usize, offset % CHUNK);
        if bytes > CHUNK - within {
            return Err(CORRUPT);
        }
        let mut base = self.bases.get(chunk).ok_or(CORRUPT)?.load(Acquire);
        if base.is_null() {
            base = self.map(chunk, file())?;
        }
        // SAFETY: inside the chunk.
        Ok(unsafe { base.add(within as usize) })
    }

    #[cold]
    fn map(&self, chunk: usize, file: Option<File>) -> Result<*mut u8> {
        let wanted = self.origin.wrapping_add(chunk * CHUNK as usize);
        let mapped = match file.map(|file| map(&file, chunk, wanted)) {
            Some(Ok(mapped)) => mapped,
            _ => self.continued(chunk).map_err(|_| Errno(libc::ENOMEM))?,
        };
        let null = std::ptr::null_mut();
        match self.bases[chunk].compare_exchange(null, mapped, AcqRel, Acquire) {
            Ok(_) => Ok(mapped),
            Err(others) => {
                unmap(mapped, CHUNK as usize);
                Ok(others)
            }
        }
    }

    /// Maps a chunk where this process may not open the file any more: the kernel doubles a shared
    /// mapping with any length.
    fn continued(&self, chunk: usize) -> Result<*mut u8> {
        let is_mapped = |&before: &usize| !self.bases[before].load(Acquire).is_null();
        let before = (0..chunk).rev().find(is_mapped).ok_or(CORRUPT)?;
        let (base, skipped) = (self.bases[before].load(Acquire), (chunk - before) * CHUNK as usize);
        let length = skipped + CHUNK as usize;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let doubled = unsafe { call!(SYS_mremap, base, 0, length, libc::MREMAP_MAYMOVE) }?;
        unmap(doubled as *mut u8, skipped);
        Ok((doubled + skipped) as *mut u8)
    }

    /// The offset of what is at an address of the mapping.
    #[inline]
    pub fn offset_of(&self, address: usize) -> u64 {
        let offset = address.wrapping_sub(self.origin) as u64;
        let base =
            self.bases.get((offset / CHUNK) as usize).map_or(0, |b| b.load(Relaxed) as usize);
        if base == address.wrapping_sub((offset % CHUNK) as usize) {
            offset
        } else {
            self.search(address)
        }
    }

    #[cold]
    fn search(&self, address: usize) -> u64 {
        let within = |base: &AtomicPtr<u8>| {
            let base = base.load(Relaxed) as usize;
            Some(address.wrapping_sub(base)).filter(|&at| base != 0 && at < CHUNK as usize)
        };
        let found = self.bases.iter().zip(0..).find_map(|(b, i)| Some((i, within(b)?)));
        found.map_or(u64::MAX, |(chunk, within): (u64, usize)| chunk * CHUNK + within as u64)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let mapped = self.bases.iter().map(|base| base.load(Relaxed));
        mapped.filter(|base| !base.is_null()).for_each(|base| unmap(base, CHUNK as usize));
    }
}
