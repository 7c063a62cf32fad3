// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection slots: the addresses of the nodes that a thread protects, one per slot.
//!
//! # The protocol
//! A reader fills a slot as the *last act inside* the section in which it found the node. A
//! reclaimer unlinks the node, then waits for a grace period, then looks into every slot, in this
//! order. Then
//!
//! > **Invariant.** A node whose grace period has ended is in a slot if and only if a guard for it
//! > is alive, or may come and go in a slot of a thread that is about to start its lookup over; in
//! > no case does a guard for it come into being later.
//!
//! because the section that filled the slot either was over when the grace period ended, its store
//! therefore visible, or began after the unlinking was visible and cannot have found the node, or
//! was a restartable one that the grace period sent back to its start before it could end. A look
//! *before* the grace period proves nothing: the store may follow it.
//!
//! Filling a slot releases, as emptying it does: a reclaimer that finds a slot filled with another
//! node concludes that the guard for the first is gone, and must be ordered after what that guard's
//! owner did with it.
//!
//! # Which slot
//! A slot with 0 is free; only the owning thread fills its slots, so taking one needs no atomic
//! operation, and a signal handler that takes slots has given them back when the interrupted code
//! goes on. The first slots lie in the record; further blocks are linked when those are in use, and
//! are kept for the next owner of the record. A traversal that needs slots later reserves them
//! ([`RESERVED`]).

use crate::platform::link::Link;
use crate::platform::sync::{AtomicUsize, Ordering};

#[cfg(not(loom))]
const FIRST: usize = 8;
#[cfg(loom)]
const FIRST: usize = 1;
#[cfg(not(loom))]
const MORE: usize = 4096 / size_of::<usize>() - 1;
#[cfg(loom)]
const MORE: usize = 1;

/// In a slot that holds no node, and is not free. No node has this address.
pub(crate) const RESERVED: usize = 1;

#[repr(C)]
pub(crate) struct Slots {
    first: [AtomicUsize; FIRST],
    more: Link<SlotBlock>,
}

#[repr(C)]
pub(crate) struct SlotBlock {
    next: Link<SlotBlock>,
    slots: [AtomicUsize; MORE],
}

impl Slots {
    #[cfg(loom)]
    pub(crate) fn new() -> Slots {
        Slots { first: std::array::from_fn(|_| AtomicUsize::new(0)), more: Link::null() }
    }

    /// A free slot of the calling thread, which owns the record. Free until it is filled: not
    /// reserved.
    #[inline(always)]
    pub(crate) fn free(&self) -> &AtomicUsize {
        if self.first[0].load(Ordering::Relaxed) == 0 {
            &self.first[0]
        } else {
            self.free_further()
        }
    }

    /// A slot that nobody else takes until it is 0 again.
    pub(crate) fn reserve(&self) -> &AtomicUsize {
        let slot = self.free();
        slot.store(RESERVED, Ordering::Relaxed);
        slot
    }

    #[cold]
    #[inline(never)]
    fn free_further(&self) -> &AtomicUsize {
        self.all().find(|s| s.load(Ordering::Relaxed) == 0).unwrap_or_else(|| self.grow())
    }

    fn grow(&self) -> &AtomicUsize {
        #[cfg(not(loom))]
        let _blocked = crate::platform::sys::SignalsBlocked::new();
        // SAFETY: `new_block` returns null or an initialized block that nobody else knows.
        let Some(block) = (unsafe { new_block().as_ref() }) else {
            no_memory();
        };
        block.next.set(self.more.get());
        self.more.set(std::ptr::from_ref(block).cast_mut());
        &block.slots[0]
    }

    /// All slots, as far as they are published.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AtomicUsize> {
        // SAFETY: a link is null or leads to a published block, and blocks are never freed.
        let follow = |link: &Link<SlotBlock>| unsafe { link.get().as_ref() };
        let blocks = std::iter::successors(follow(&self.more), move |block| follow(&block.next));
        self.first.iter().chain(blocks.flat_map(|block| &block.slots))
    }

    /// Whether no slot holds a node. For the owner.
    #[cfg(not(loom))]
    pub(crate) fn empty(&self) -> bool {
        self.all().all(|s| s.load(Ordering::Relaxed) == 0)
    }

    /// Empties all slots: the owner is gone.
    pub(crate) fn clear(&self) {
        self.all()
            .filter(|s| s.load(Ordering::Relaxed) != 0)
            .for_each(|s| s.store(0, Ordering::Release));
    }
}

#[cfg(not(loom))]
fn new_block() -> *mut SlotBlock {
    const { assert!(size_of::<SlotBlock>() == 4096) };
    crate::platform::sys::map_pages(size_of::<SlotBlock>()).cast()
}

#[cfg(loom)]
fn new_block() -> *mut SlotBlock {
    Box::into_raw(Box::new(SlotBlock {
        next: Link::null(),
        slots: std::array::from_fn(|_| AtomicUsize::new(0)),
    }))
}

#[cold]
#[inline(never)]
pub(super) fn no_memory() -> ! {
    #[cfg(not(loom))]
    crate::platform::sys::die("no memory for protection slots");
    #[cfg(loom)]
    panic!("no memory for protection slots")
}
