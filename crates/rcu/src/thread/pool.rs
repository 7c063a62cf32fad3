// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots that belong to no thread: those of guards that may move between threads.
//!
//! Such a guard cannot stay in the slot of the thread that made it. The thread may end, or be
//! missing in the child of a fork, and takes its own slots without an atomic operation. So the
//! guard moves here, once.
//!
//! > **Invariant.** A protection moves from a thread's slot to the pool, and never anywhere else.
//! > The slot in the pool is filled before the thread's slot is emptied. A scan looks into the pool
//! > after it has looked into the threads' slots.
//!
//! So a scan finds each protection that exists when the scan begins, and still exists when it ends.
//! If the scan finds the thread's slot emptied, or filled with another node since, it acquires what
//! the owner did before: it will find the slot of the pool filled. New protections of a node that
//! waits for the scan do not come into being (`slots.rs`).
//!
//! All domains share the pool: a node belongs to one of them, and no two have the same address.
//!
//! # Taking a slot
//! Any thread may take any slot: by a compare-and-swap, at a place that differs from one call to
//! the next. If a few places of each block are in use, a block is added that is as large as all
//! others together. Blocks are never freed.

use crate::platform::link::Link;
use crate::platform::sync::{AtomicUsize, Ordering, const_unless_loom};

/// Places of a block that are looked at.
#[cfg(not(loom))]
const PLACES: usize = 8;
#[cfg(loom)]
const PLACES: usize = 1;

/// Multiplied by this, the numbers of calls in a row lie far apart.
const SPREAD: usize = 0x9e37_79b9_7f4a_7c15_u64 as usize;

/// Bytes of the first block.
#[cfg(not(loom))]
const FIRST: usize = 4096;

pub(crate) struct Pool {
    newest: Link<Block>,
    turn: AtomicUsize,
}

struct Block {
    next: Link<Block>,
    slots: &'static [AtomicUsize],
}

/// The process's.
#[cfg(not(loom))]
pub(crate) static POOL: Pool = Pool::new();

impl Pool {
    const_unless_loom! {
        pub(crate) fn new() -> Pool {
            Pool { newest: Link::null(), turn: AtomicUsize::new(0) }
        }
    }

    fn blocks(&self) -> impl Iterator<Item = &Block> {
        // SAFETY: a link is null or leads to a published block, and blocks are never freed.
        let follow = |link: &Link<Block>| unsafe { link.get().as_ref() };
        std::iter::successors(follow(&self.newest), move |block| follow(&block.next))
    }

    /// All slots, as far as they are published.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.blocks().flat_map(|block| block.slots)
    }

    /// Moves the node of a slot of the calling thread into a slot here.
    pub(crate) fn take_over(&self, from: &AtomicUsize) -> &'static AtomicUsize {
        let slot = self.fill(from.load(Ordering::Relaxed));
        // Release: who finds this slot without the node finds the other one with it.
        from.store(0, Ordering::Release);
        slot
    }

    pub(crate) fn fill(&self, node: usize) -> &'static AtomicUsize {
        // Neighbours share a cache line.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(SPREAD);
        let places = |block: &Block| {
            let slots = block.slots;
            (0..PLACES).map(move |i| &slots[(turn >> 16).wrapping_add(i) % slots.len()])
        };
        // Acquire and release: as where a thread takes and fills a slot.
        let take = |slot: &AtomicUsize| {
            slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, node, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        self.blocks().flat_map(places).find(|slot| take(slot)).unwrap_or_else(|| self.grow(node))
    }

    /// Empties the slots of these nodes: their domain ends, and their guards are leaked. Else
    /// whoever gets a node's memory next could not free it.
    #[cfg(not(loom))]
    pub(crate) fn end_guards(&self, of: impl Fn(usize) -> bool) {
        let leaked = |slot: &&AtomicUsize| of(slot.load(Ordering::Relaxed));
        // Release: as at the end of a guard.
        self.all().filter(leaked).for_each(|slot| slot.store(0, Ordering::Release));
    }

    /// Adds a block, whose first slot is filled.
    #[cold]
    fn grow(&self, node: usize) -> &'static AtomicUsize {
        loop {
            let newest = self.newest.get();
            // SAFETY: as in `blocks`.
            let before = unsafe { newest.as_ref() }.map_or(0, |block| block.slots.len());
            // SAFETY: fresh, and never freed.
            let Some(block) = (unsafe { new_block(before).as_ref() }) else {
                super::slots::no_memory();
            };
            block.slots[0].store(node, Ordering::Relaxed);
            block.next.set(newest);
            if self.newest.replace(newest, std::ptr::from_ref(block).cast_mut()) {
                return &block.slots[0];
            }
            give_back(block);
        }
    }
}

/// A block of free slots, more than `before`, or null.
#[cfg(not(loom))]
fn new_block(before: usize) -> *mut Block {
    let bytes = FIRST.max((2 * before * size_of::<usize>()).next_power_of_two());
    let block: *mut Block = crate::platform::sys::map_pages(bytes).cast();
    if !block.is_null() {
        let slots = (bytes - size_of::<Block>()) / size_of::<usize>();
        // SAFETY: fresh zeroed pages, of which the slots are all behind the block's head.
        unsafe {
            let slots = std::slice::from_raw_parts(block.add(1).cast(), slots);
            block.write(Block { next: Link::null(), slots });
        }
    }
    block
}

/// Another thread was faster.
#[cfg(not(loom))]
fn give_back(block: &'static Block) {
    let bytes = size_of::<Block>() + size_of_val(block.slots);
    // SAFETY: mapped with this size, and nobody else knows it.
    unsafe { libc::munmap(std::ptr::from_ref(block).cast_mut().cast(), bytes) };
}

#[cfg(loom)]
fn new_block(_: usize) -> *mut Block {
    let slots = vec![AtomicUsize::new(0)].leak();
    Box::into_raw(Box::new(Block { next: Link::null(), slots }))
}

#[cfg(loom)]
fn give_back(_: &'static Block) {}
