// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry of a domain: a list of chunks of records that only grows.
//!
//! Threads claim a free record with one compare-and-swap and publish a new chunk with another, so
//! registration is lock-free and may happen in a signal handler. Records are never unlinked or
//! freed: a reclaimer walks the list without protection, and a thread that ends in an unusual way
//! (without its thread-specific destructors) costs one record, not safety; if it was inside a
//! section, grace periods wait until its death is noticed (`watch/`).
//!
//! A reclaimer may miss a chunk that is being linked, and need not see it: the linking comes before
//! the first section of that thread, so by the argument in `record.rs` a section that the
//! reclaimer's walk misses began after its heavy barrier.
//!
//! Chunks hang together by [`Link`]s and contain nothing that is meaningful in one process only,
//! except the address of the owner's rseq area, which only the owner reads.

#[cfg(not(loom))]
use super::id::MAX_DOMAINS;
use super::record::Record;
use crate::platform::link::Link;
use crate::platform::sync::const_unless_loom;

#[cfg(not(loom))]
const CHUNK: usize = 4 * 4096;
#[cfg(not(loom))]
const RECORDS: usize = CHUNK / size_of::<Record>() - 1;
#[cfg(loom)]
const RECORDS: usize = 1;

#[repr(C)]
struct Chunk {
    next: Link<Chunk>,
    records: [Record; RECORDS],
}

/// For `inspect.rs`.
#[cfg(not(loom))]
pub(crate) mod layout {
    pub(crate) const RECORDS_AT: usize = std::mem::offset_of!(super::Chunk, records);
    pub(crate) const RECORDS: usize = super::RECORDS;
}

/// All records of a domain. See the module's text.
#[repr(C)]
pub(crate) struct Registry {
    first: Link<Chunk>,
}

/// The registries of domains, by index. A registry outlives its domain, with the threads registered
/// in it, and serves the next domain of that index.
#[cfg(not(loom))]
pub(crate) static REGISTRIES: [Registry; MAX_DOMAINS] = [const { Registry::new() }; MAX_DOMAINS];

impl Registry {
    const_unless_loom! {
        pub(crate) fn new() -> Registry {
            Registry { first: Link::null() }
        }
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        // SAFETY: a link of the registry is null or leads to a published chunk, and chunks are
        // never freed.
        let follow = |link: &Link<Chunk>| unsafe { link.get().as_ref() };
        std::iter::successors(follow(&self.first), move |chunk| follow(&chunk.next))
    }

    /// All records, claimed or not.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.chunks().flat_map(|chunk| &chunk.records)
    }

    /// A record for `thread` (not 0), or `None` if memory is exhausted.
    ///
    /// Only for a thread that does not own one already.
    pub(crate) fn claim(&self, thread: u32) -> Option<&Record> {
        if let Some(free) = self.records().find(|r| r.claim(thread)) {
            return Some(free);
        }
        // SAFETY: `new_chunk` returns null or a chunk that is initialized and nobody else knows.
        let chunk = unsafe { new_chunk().as_ref() }?;
        let claimed = chunk.records[0].claim(thread);
        debug_assert!(claimed);
        loop {
            let old = self.first.get();
            chunk.next.set(old);
            if self.first.replace(old, std::ptr::from_ref(chunk).cast_mut()) {
                return Some(&chunk.records[0]);
            }
        }
    }
}

/// A chunk of free records that is never freed, or null.
#[cfg(not(loom))]
fn new_chunk() -> *mut Chunk {
    const { assert!(size_of::<Chunk>() <= CHUNK) };
    // Zeroed pages are a chunk of free records without a successor.
    crate::platform::sys::map_pages(CHUNK).cast()
}

#[cfg(loom)]
fn new_chunk() -> *mut Chunk {
    Box::into_raw(Box::new(Chunk {
        next: Link::null(),
        records: std::array::from_fn(|_| Record::new()),
    }))
}
