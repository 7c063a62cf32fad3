// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of a queue's messages, and who is poked when it changes.

use super::{Message, Messages};
use crate::error::{CORRUPT, Result};
use crate::heap::Locked;
use crate::peers::Local;
use crate::queue::{Queue, Wakes};
use crate::space::layout::Thread;
use crate::sys;
use std::sync::atomic::Ordering::*;

/// Blocks that a queue keeps.
const KEPT: u64 = 64;
/// A kept block may be that many times as large as needed.
const WASTE: u64 = 4;
/// Messages in a queue: more than fit into the heap.
const MOST: u64 = 1 << 27;

const HEAD: u64 = size_of::<Message>() as u64;

/// The messages that a receiver takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    Any,
    Equal(i64),
    Except(i64),
    /// The lowest type up to this one.
    UpTo(i64),
    /// By position, to be copied.
    Number(i64),
}

impl Wanted {
    pub fn new(kind: i64, flags: i32) -> Wanted {
        match kind {
            _ if flags & libc::MSG_COPY != 0 => Wanted::Number(kind),
            0 => Wanted::Any,
            ..0 => Wanted::UpTo(kind.checked_neg().unwrap_or(i64::MAX)),
            _ if flags & libc::MSG_EXCEPT != 0 => Wanted::Except(kind),
            _ => Wanted::Equal(kind),
        }
    }

    fn takes(self, kind: i64) -> bool {
        match self {
            Wanted::Any | Wanted::Number(_) => true,
            Wanted::Equal(wanted) => kind == wanted,
            Wanted::Except(not) => kind != not,
            Wanted::UpTo(most) => kind <= most,
        }
    }

    /// What a thread waits for.
    fn of(thread: &Thread) -> Wanted {
        let [kind, flags] = [0, 1].map(|i| thread.want[i].load(Relaxed));
        Wanted::new(kind as i64, flags as i32)
    }
}

/// A message in the list, with what is before it.
pub(super) struct Found {
    pub message: &'static Message,
    at: u64,
    /// The message before it, or 0.
    before: u64,
}

impl Messages {
    pub(super) fn fits(&self, bytes: u64) -> bool {
        let (most, now) = (self.qbytes.load(Relaxed), self.cbytes.load(Relaxed));
        bytes.saturating_add(now) <= most && self.qnum.load(Relaxed) < most
    }

    /// A block for a message. Not committed; the heap's lock, if it was taken, is to be kept.
    fn block<'l>(&self, local: &'l Local, bytes: u64) -> Result<(u64, Option<Locked<'l>>)> {
        let kept = self.object.chains[1].load(Relaxed);
        if kept != 0 {
            let room = local.capacity(kept)?;
            if room >= bytes && room / WASTE <= bytes.max(64) {
                let next = local.space.view::<Message>(kept)?.next.load(Relaxed);
                let left = self.kept.load(Relaxed).saturating_sub(1);
                local.set_all([(&self.object.chains[1], next), (&self.kept, left)])?;
                return Ok((kept, None));
            }
        }
        let heap = local.heap()?;
        Ok((heap.take(bytes)?, Some(heap)))
    }

    /// Appends a message and pokes a receiver.
    pub(super) fn append(
        &self,
        local: &Local,
        offset: u64,
        kind: i64,
        data: &[u8],
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        let size = data.len() as u64;
        let (at, _heap) = self.block(local, HEAD + size)?;
        let message: &Message = local.space.view(at)?;
        let to = local.space.bytes(at + HEAD, size)?;
        message.kind.store(kind as u64, Relaxed);
        message.size.store(size, Relaxed);
        // SAFETY: a range of the mapping, as long as the data, that is nobody's yet.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        let last = self.last.load(Relaxed);
        let link = match last {
            0 => &self.object.chains[0],
            _ => &local.space.view::<Message>(last)?.next,
        };
        local.set_all([
            // The word may be a link of kept blocks, which a roll-back needs.
            (&message.next, 0),
            (link, at),
            (&self.last, at),
            (&self.qnum, self.qnum.load(Relaxed).wrapping_add(1)),
            (&self.cbytes, self.cbytes.load(Relaxed).wrapping_add(size)),
            (&self.lspid, local.pid.into()),
            (&self.stime, sys::now()),
        ])?;
        local.commit();
        if self.receivers.first.load(Relaxed) != 0 {
            self.poke_receiver(local, offset, kind, wakes)?;
        }
        Ok(())
    }

    #[cold]
    fn poke_receiver(
        &self,
        local: &Local,
        offset: u64,
        kind: i64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        local.waiters(&self.receivers, offset, |_, thread| {
            let wanted = Wanted::of(thread);
            if !wanted.takes(kind) || local.is_poked(thread) {
                return true;
            }
            wakes.poke(local, thread);
            false
        })
    }

    /// Pokes the receivers, first come first, for whom there is a message, unless it is one for who
    /// comes before.
    #[cold]
    fn poke_receivers(&self, local: &Local, offset: u64, wakes: &mut Wakes<'static>) -> Result<()> {
        let mut left = self.qnum.load(Relaxed);
        if left == 0 {
            return Ok(());
        }
        // Messages for those before; behind that many, some may be poked in vain.
        let (mut taken, mut count) = ([0; 16], 0);
        local.waiters(&self.receivers, offset, |_, thread| {
            let wanted = Wanted::of(thread);
            let Ok(Some(found)) = self.look_beside(local, wanted, &taken[..count]) else {
                return true;
            };
            if count < taken.len() {
                taken[count] = found.at;
                count += 1;
                left -= 1;
            }
            wakes.poke(local, thread);
            left != 0
        })
    }

    /// Has all waiters look for themselves.
    #[cold]
    pub(super) fn poke_all(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        for queue in [&self.receivers, &self.senders] {
            local.waiters(queue, offset, |number, thread| {
                if number != u64::from(local.number) {
                    wakes.poke(local, thread);
                }
                true
            })?;
        }
        Ok(())
    }

    /// Pokes the senders, first come first, whose messages fit now: also behind one whose does not.
    #[cold]
    pub(super) fn poke_senders(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        // As in `fits`: two for whom there is no room would poke each other for ever.
        let most = self.qbytes.load(Relaxed);
        let Some(mut room) = most.checked_sub(self.cbytes.load(Relaxed)) else { return Ok(()) };
        let mut messages = most.saturating_sub(self.qnum.load(Relaxed));
        local.waiters(&self.senders, offset, |_, thread| {
            let size = thread.want[0].load(Relaxed);
            if messages != 0 && size <= room {
                room -= size;
                messages -= 1;
                wakes.poke(local, thread);
            }
            messages != 0
        })
    }

    /// Hands on the poke of a waiter of that queue, which waits again, has failed, or is `done`.
    #[cold]
    pub(super) fn hand_on(
        &self,
        local: &Local,
        queue: &Queue,
        offset: u64,
        done: bool,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        match (std::ptr::eq(queue, &self.senders), done) {
            // The waiter has used the room that it was poked for.
            (true, true) => Ok(()),
            (true, false) => self.poke_senders(local, offset, wakes),
            // The waiter may have taken another message.
            (false, _) => self.poke_receivers(local, offset, wakes),
        }
    }

    pub(super) fn look_for(&self, local: &Local, wanted: Wanted) -> Result<Option<Found>> {
        self.look_beside(local, wanted, &[])
    }

    /// [`Messages::look_for`], without the messages at these offsets.
    #[inline]
    fn look_beside(&self, local: &Local, wanted: Wanted, not: &[u64]) -> Result<Option<Found>> {
        let (mut at, mut before, mut best, mut wanted) =
            (self.object.chains[0].load(Relaxed), 0, None, wanted);
        for number in 0..=self.qnum.load(Relaxed).min(MOST) {
            if at == 0 {
                return Ok(best);
            }
            let message: &Message = local.space.view(at)?;
            let kind = message.kind.load(Relaxed) as i64;
            if wanted.takes(kind) && !not.contains(&at) {
                let found = Found { message, at, before };
                match wanted {
                    Wanted::Number(n) if n != number as i64 => {}
                    Wanted::UpTo(_) if kind > 1 => {
                        best = Some(found);
                        wanted = Wanted::UpTo(kind - 1);
                    }
                    _ => return Ok(Some(found)),
                }
            }
            before = at;
            at = message.next.load(Relaxed);
        }
        Err(CORRUPT)
    }

    /// Copies a message's bytes out; as many as fit.
    pub(super) fn copy(&self, local: &Local, found: &Found, to: &mut [u8]) -> Result<usize> {
        let size = found.message.size.load(Relaxed);
        if size > local.capacity(found.at)?.saturating_sub(HEAD) {
            return Err(CORRUPT);
        }
        let from = local.space.bytes(found.at + HEAD, size)?;
        let bytes = to.len().min(size as usize);
        // SAFETY: a range of the mapping; others write to it only when the message is theirs.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), bytes) };
        Ok(bytes)
    }

    /// Takes a message out of the list, and commits.
    pub(super) fn unlink(&self, local: &Local, found: &Found) -> Result<()> {
        let (message, at) = (found.message, found.at);
        let next = message.next.load(Relaxed);
        let link = match found.before {
            0 => &self.object.chains[0],
            before => &local.space.view::<Message>(before)?.next,
        };
        let size = message.size.load(Relaxed);
        local.set_all([
            (link, next),
            (&self.last, if next == 0 { found.before } else { self.last.load(Relaxed) }),
            (&self.qnum, self.qnum.load(Relaxed).saturating_sub(1)),
            (&self.cbytes, self.cbytes.load(Relaxed).saturating_sub(size)),
            (&self.lrpid, local.pid.into()),
            (&self.rtime, sys::now()),
        ])?;
        let kept = self.kept.load(Relaxed);
        if kept < KEPT && size <= 4096 {
            local.set_all([
                (&message.next, self.object.chains[1].load(Relaxed)),
                (&self.object.chains[1], at),
                (&self.kept, kept + 1),
            ])?;
        } else {
            let heap = local.heap()?;
            heap.free(at)?;
            local.commit();
        }
        local.commit();
        Ok(())
    }

    pub(super) fn leave(&self, local: &Local, queue: &Queue, offset: u64) -> Result<()> {
        local.roll_back();
        if local.waits_on(offset) {
            local.dequeue(queue, local.number.into())?;
            local.commit();
        }
        Ok(())
    }
}
