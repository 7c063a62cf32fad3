// SPDX-License-Identifier: MIT OR Apache-2.0
//! The places from which a long traversal goes on: nodes that a reader keeps in its protection
//! slots between two restartable sections.
//!
//! A traversal of any length consists of *parts* of a bounded number of steps. Each part is one
//! section. Its last act fills a slot with the node it has reached, the next *checkpoint*, and the
//! next part starts there. A grace period sends a part back to its checkpoint, not the traversal
//! back to its start.
//!
//! # Why a part never touches freed memory
//! The slot keeps the checkpoint allocated. It does not keep the checkpoint in the structure, and
//! keeps nothing else: the links of a node that was unlinked in the meantime lead to nodes that may
//! be freed. So
//!
//! > **Promise of the writer.** A node is marked as unlinked for good before a node to which its
//! > links lead is retired. The links of a marked node may lead anywhere.
//!
//! > **Rule of the reader.** A part that starts at a checkpoint looks for the mark, inside its
//! > section, before it follows a link. If it finds the mark, the checkpoint is *lost*.
//!
//! > **Invariant.** A part reads nodes only that were in the structure at a moment after the part
//! > had been armed, and checkpoints in slots.
//!
//! Let a part find checkpoint C without the mark and follow C's link to M. If M was retired, C was
//! marked before that, or C's link no longer led to M. The grace period of M comes after its
//! retirement, and a section that is armed after the heavy barrier sees everything that came
//! before it, the mark included. So this part was armed before the heavy barrier, and M's grace
//! period waits for the part, or sends it back. From M on the part is an ordinary traversal.
//!
//! The mark must be looked for inside. Between a look outside and the section, C can be unlinked,
//! and M be retired and freed, and no grace period knows of the reader.
//!
//! # Which slot
//! A part must not overwrite the checkpoint that it starts from: it may be aborted after it has
//! filled the slot. So the slots alternate. Three are in turn:
//! - `newest`, where the next part starts;
//! - `base`, an older one, where it starts if `newest` is lost. `newest` takes its place only when
//!   a part has found `newest` not to be lost. So a loop that removes each node at which it stops
//!   keeps a base that is in the structure;
//! - `spare`, which the part fills. What an aborted part has left there is never used. A part that
//!   reaches nothing stores [`RESERVED`]: with 0 the slot would be free, and be taken for another
//!   node.
//!
//! If both are lost, the traversal starts at the structure's entry again. A search may do so at any
//! time. A scan that must not see a node twice compares positions (`structures/list/scan.rs`).
//!
//! A protection never moves from slot to slot by a copy outside of sections: a reclaimer could look
//! into the second slot before the copy, and into the first after it was emptied.
//!
//! # Addresses that are used again
//! No node is allocated at the address of a checkpoint while it is in its slot. A slot that an
//! aborted part has filled may hold an address that is no longer, or again, a node's: that delays
//! the free of one node until the slot is filled again. A checkpoint is what a *completed* part has
//! left, which had the node in hand when it filled the slot.

use crate::platform::sync::{AtomicUsize, Ordering};
use crate::thread::slots::{RESERVED, Slots};
use std::marker::PhantomData;

pub(crate) struct Checkpoints<'r> {
    /// The slots of `base`, of `newest`, and the spare one.
    slots: [&'r AtomicUsize; 3],
    /// Nodes, in the first slots; 0 if there is none.
    base: usize,
    newest: usize,
    /// The slots are this thread's.
    thread: PhantomData<*mut ()>,
}

impl<'r> Checkpoints<'r> {
    /// Takes three slots of the calling thread, which owns the record.
    pub(crate) fn reserve(slots: &'r Slots) -> Checkpoints<'r> {
        let slots = std::array::from_fn(|_| slots.reserve());
        Checkpoints { slots, base: 0, newest: 0, thread: PhantomData }
    }

    /// The node where the next part starts, 0 for the structure's entry, and the slot that it
    /// fills.
    pub(crate) fn next(&self) -> (usize, &'r AtomicUsize) {
        (if self.newest != 0 { self.newest } else { self.base }, self.slots[2])
    }

    /// A part that started where [`next`](Checkpoints::next) said has filled the slot with `node`.
    pub(crate) fn reached(&mut self, node: usize) {
        if self.newest != 0 {
            self.base = self.newest;
            self.slots.rotate_left(1);
        } else {
            self.slots.swap(1, 2);
        }
        self.newest = node;
        #[cfg(all(reprieve_fault, not(loom)))]
        if crate::platform::fault::is(crate::platform::fault::Fault::LetGo) {
            self.slots[1].store(RESERVED, Ordering::Release);
        }
        // Release: as where a guard lets its node go.
        self.slots[2].store(RESERVED, Ordering::Release);
    }

    /// The part found the mark on its checkpoint.
    pub(crate) fn lost(&mut self) {
        if self.newest != 0 { self.newest = 0 } else { self.base = 0 }
    }

    /// The slot that the last part has filled, which is the caller's now.
    #[cfg(not(loom))]
    pub(crate) fn keep(self) -> &'r AtomicUsize {
        let [base, newest, kept] = std::mem::ManuallyDrop::new(self).slots;
        [base, newest].iter().for_each(|slot| slot.store(0, Ordering::Release));
        kept
    }
}

impl Drop for Checkpoints<'_> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Release));
    }
}
