// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mapping of the file, which grows.
//!
//! The file is sparse and as long as its layout. A process maps a chunk of it when it first looks
//! there. So it needs address space for what is in use (`ulimit -v`), and `mlockall` needs memory
//! for no more.
//!
//! A value lies in one chunk as a whole. Chunks are mapped one behind the other where addresses are
//! free: then the difference of two addresses is that of the offsets. Who maps a chunk elsewhere
//! says so before anybody can load the chunk's base, and so before anybody has an address in it.
//! From then on an address is searched for.
//!
//! **Invariant: who cannot map a chunk does as if it did not know what is in it.** A call fails
//! with `ENOMEM`. A lock is not taken from a dead holder whose changes cannot be undone; a thread
//! whose place cannot be seen counts as alive, and as a reader.

use super::layout::{CHUNK, HEAP, SIZE};
use crate::error::{CORRUPT, Errno, Result};
use crate::file::{self, File};
use crate::kernel::call;
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

const COUNT: usize = (SIZE / CHUNK) as usize;

pub(super) struct Chunks {
    /// Null: not mapped. Not on the stack: a thread's first call makes it.
    bases: Box<[AtomicPtr<u8>; COUNT]>,
    /// Where the first one is.
    origin: usize,
    /// Whether some chunk is not where it would be if all were one mapping.
    scattered: AtomicBool,
    /// So much of the heap is where it would be, from its beginning on.
    heap: AtomicU64,
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
        let bases: Box<[_; COUNT]> = bases.try_into().map_err(|_| CORRUPT)?;
        bases[0].store(first, Relaxed);
        Ok(Chunks {
            bases,
            origin: first as usize,
            scattered: AtomicBool::new(false),
            heap: AtomicU64::new(0),
        })
    }

    #[inline]
    pub fn first(&self) -> *mut u8 {
        self.origin as *mut u8
    }

    /// Where so many bytes of the heap are, if they are where they would be.
    #[inline]
    pub fn in_heap(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let (within, heap) = (offset.wrapping_sub(HEAP), self.heap.load(Acquire));
        let is_there = within < heap && bytes <= heap - within;
        is_there.then_some((self.origin.wrapping_add(offset as usize)) as *mut u8)
    }

    /// Where so many bytes at an offset are, if they are mapped.
    pub fn at(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let (chunk, within) = ((offset / CHUNK) as usize, offset % CHUNK);
        let base = self.bases.get(chunk)?.load(Acquire);
        // SAFETY: inside the chunk.
        (!base.is_null() && bytes <= CHUNK - within).then(|| unsafe { base.add(within as usize) })
    }

    /// The same, where they may have to be mapped: from the file, if there is one.
    pub fn map(&self, offset: u64, bytes: u64, file: Option<File>) -> Result<*mut u8> {
        let chunk = (offset / CHUNK) as usize;
        if chunk >= COUNT || bytes > CHUNK - offset % CHUNK {
            return Err(CORRUPT);
        }
        let wanted = self.origin.wrapping_add(chunk * CHUNK as usize);
        let mapped = match file.map(|file| map(&file, chunk, wanted)) {
            Some(Ok(mapped)) => mapped,
            _ => self.continued(chunk).map_err(|_| Errno(libc::ENOMEM))?,
        };
        if mapped as usize != wanted {
            // Before anybody sees the base.
            self.scattered.store(true, Release);
        }
        let null = std::ptr::null_mut();
        if self.bases[chunk].compare_exchange(null, mapped, AcqRel, Acquire).is_err() {
            // Another thread has mapped it.
            unmap(mapped, CHUNK as usize);
        }
        self.note_heap();
        self.at(offset, bytes).ok_or(CORRUPT)
    }

    fn note_heap(&self) {
        let is_in_place = |&chunk: &usize| {
            let wanted = self.origin.wrapping_add(chunk * CHUNK as usize);
            self.bases[chunk].load(Acquire) as usize == wanted
        };
        let first = (HEAP / CHUNK) as usize;
        let in_place = (first..COUNT).take_while(is_in_place).count() as u64;
        self.heap.fetch_max(in_place * CHUNK, AcqRel);
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
        if self.scattered.load(Relaxed) {
            return self.search(address);
        }
        address.wrapping_sub(self.origin) as u64
    }

    #[cold]
    fn search(&self, address: usize) -> u64 {
        let offset = address.wrapping_sub(self.origin);
        let (chunk, before) = (offset / CHUNK as usize, offset % CHUNK as usize);
        let base = self.bases.get(chunk).map_or(0, |base| base.load(Relaxed) as usize);
        if base == address.wrapping_sub(before) {
            return offset as u64;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Space;
    use crate::space::layout::PAGE;

    #[test]
    fn an_address_tells_the_offset_wherever_a_chunk_is() {
        let directory = tempfile::tempdir().unwrap();
        let space = Space::open(directory.path()).unwrap();
        let told = |offset| space.view::<AtomicU64>(offset).map(|word| space.offset_of(word));
        assert_eq!(told(HEAP + 8), Ok(HEAP + 8));
        // Without the file the kernel chooses the place.
        let elsewhere = HEAP + 3 * CHUNK;
        let at = space.chunks.map(elsewhere, 8, None).unwrap();
        assert_ne!(at as usize, space.chunks.origin + elsewhere as usize);
        for chunk in [5, 3, 2, 1, 4] {
            let offset = HEAP + chunk * CHUNK + 16;
            assert_eq!(told(offset), Ok(offset));
        }
        assert!(space.chunks.heap.load(Relaxed) <= 3 * CHUNK);
        [0, PAGE, HEAP + 8].iter().for_each(|&offset| assert_eq!(told(offset), Ok(offset)));
        // Neither the last bytes of all nor those of a chunk that is mapped elsewhere go on.
        assert_eq!(space.bytes(elsewhere + CHUNK - 8, 16), Err(CORRUPT));
        assert_eq!(space.bytes(SIZE - 8, 16), Err(CORRUPT));
        assert_eq!(space.bytes(u64::MAX - 7, 16), Err(CORRUPT));
    }
}
