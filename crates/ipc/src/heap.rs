// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for objects: blocks of powers of two in the mapped file, with a free list per size.
//!
//! Taking a block and linking it to its object is one transaction, so that a death loses none.
//! What readers may still see is not freed: it goes to *limbo*, whence it is freed after a grace
//! period ([`reclaim`](crate::grace)). What readers find without a lock, objects and arrays, begins
//! there, too: they may see the link before it is committed, and what is rolled back must not be
//! free then.

use crate::error::{CORRUPT, Errno, Result};
use crate::lock::Held;
use crate::peers::Local;
use crate::space::layout::*;
use std::sync::atomic::Ordering::*;

/// In a block's state, above its class.
const IN_USE: u64 = 0x7569_7065 << 32 | 1 << 16;
const UNUSED: u64 = 0x7569_7065 << 32;

const BEFORE: u64 = size_of::<Block>() as u64;

/// The heap, locked. What is taken stays taken with the commit, for which the lock is held.
pub(crate) struct Locked<'l> {
    local: &'l Local,
    heap: &'l Heap,
    _lock: Held<'l>,
}

fn class_of(bytes: u64) -> Result<usize> {
    let whole = bytes.checked_add(BEFORE).ok_or(CORRUPT)?;
    let class = whole.next_power_of_two().trailing_zeros().saturating_sub(SMALLEST) as usize;
    if class < CLASSES { Ok(class) } else { Err(Errno(libc::ENOMEM)) }
}

fn size_of_class(class: usize) -> u64 {
    1 << (class as u32 + SMALLEST)
}

impl Local {
    pub fn heap(&self) -> Result<Locked<'_>> {
        let heap = &self.space.header().heap;
        Ok(Locked { local: self, heap, _lock: self.lock(&heap.lock)? })
    }

    /// The block of what lies at an offset, and its class.
    fn block(&self, offset: u64, mark: u64) -> Result<(&Block, usize)> {
        let block: &Block = self.space.view(offset.wrapping_sub(BEFORE))?;
        let class = (block.state.load(Relaxed) ^ mark) as usize;
        if class < CLASSES { Ok((block, class)) } else { Err(CORRUPT) }
    }

    /// Bytes that fit into a block that is in use.
    pub fn capacity(&self, offset: u64) -> Result<u64> {
        let (_, class) = self.block(offset, IN_USE)?;
        let bytes = size_of_class(class) - BEFORE;
        self.space.bytes(offset, bytes).map(|_| bytes)
    }
}

impl Locked<'_> {
    /// A block of at least that many bytes, with anything in it.
    pub fn take(&self, bytes: u64) -> Result<u64> {
        let (local, class) = (self.local, class_of(bytes)?);
        let head = self.heap.free[class].load(Relaxed);
        if head != 0 {
            let (block, found) = local.block(head, UNUSED)?;
            if found != class {
                return Err(CORRUPT);
            }
            local.set(&self.heap.free[class], block.next.load(Relaxed))?;
            local.set(&block.state, IN_USE | class as u64)?;
            return Ok(head);
        }
        let (size, mut top) = (size_of_class(class), self.heap.top.load(Relaxed));
        if !(HEAP..=SIZE).contains(&top) || top % 64 != 0 {
            return Err(CORRUPT);
        }
        if top % CHUNK + size > CHUNK {
            top = top.next_multiple_of(CHUNK);
        }
        if size > SIZE - top {
            return Err(Errno(libc::ENOMEM));
        }
        let reserved = self.heap.reserved.load(Relaxed);
        if top + size > reserved {
            let end = (top + size).next_multiple_of(PIECE);
            local.space.reserve(top, end - top).map_err(|_| Errno(libc::ENOMEM))?;
            self.heap.reserved.store(end, Relaxed);
        }
        local.set(&self.heap.top, top + size)?;
        let block: &Block = local.space.view(top)?;
        block.state.store(IN_USE | class as u64, Relaxed);
        Ok(top + BEFORE)
    }

    /// Frees a block that nobody can see any more.
    pub fn free(&self, offset: u64) -> Result<()> {
        let local = self.local;
        let (block, class) = local.block(offset, IN_USE)?;
        local.set(&block.state, UNUSED | class as u64)?;
        local.set(&block.next, self.heap.free[class].load(Relaxed))?;
        local.set(&self.heap.free[class], offset)
    }

    /// Frees a block after a grace period.
    pub fn free_later(&self, offset: u64) -> Result<()> {
        let local = self.local;
        let (block, _) = local.block(offset, IN_USE)?;
        local.set(&block.next, self.heap.limbo.load(Relaxed))?;
        local.set(&self.heap.limbo, offset)?;
        local.set(&self.heap.limbo_count, self.heap.limbo_count.load(Relaxed).wrapping_add(1))
    }

    /// Takes a block out of limbo again: the last one that was put there.
    pub fn take_back(&self, offset: u64) -> Result<()> {
        let local = self.local;
        if self.heap.limbo.load(Relaxed) != offset {
            return Err(CORRUPT);
        }
        let (block, _) = local.block(offset, IN_USE)?;
        local.set(&self.heap.limbo, block.next.load(Relaxed))?;
        local.set(&self.heap.limbo_count, self.heap.limbo_count.load(Relaxed).wrapping_sub(1))
    }

    /// Has what is in limbo wait for a grace period that begins now, unless something waits
    /// already. The number of the batch; `None` if there is none.
    pub fn begin_batch(&self) -> Result<Option<u64>> {
        let local = self.local;
        if self.heap.waiting.load(Relaxed) == 0 {
            let limbo = self.heap.limbo.load(Relaxed);
            if limbo == 0 {
                return Ok(None);
            }
            local.set(&self.heap.waiting, limbo)?;
            local.set(&self.heap.limbo, 0)?;
            local.set(&self.heap.limbo_count, 0)?;
            local.set(&self.heap.ticket, self.heap.ticket.load(Relaxed).wrapping_add(1))?;
            local.commit();
        }
        Ok(Some(self.heap.ticket.load(Relaxed)))
    }

    /// The first block of a batch whose grace period is over, taken off it. Not committed.
    pub fn next_of_batch(&self, ticket: u64) -> Result<Option<u64>> {
        let waiting = self.heap.waiting.load(Relaxed);
        if waiting == 0 || self.heap.ticket.load(Relaxed) != ticket {
            return Ok(None);
        }
        let (block, _) = self.local.block(waiting, IN_USE)?;
        self.local.set(&self.heap.waiting, block.next.load(Relaxed))?;
        Ok(Some(waiting))
    }

    /// Forgets a batch that cannot be freed: its memory is lost, not the others'.
    pub fn drop_batch(&self) {
        self.local.roll_back();
        self.heap.waiting.store(0, Relaxed);
    }
}

impl Local {
    pub fn limbo_count(&self) -> u64 {
        self.space.header().heap.limbo_count.load(Relaxed)
    }
}
