// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adjustments (`SEM_UNDO`): a process's entry in a set, and what becomes of it after a death.

use super::{MOST, Set};
use crate::error::{CORRUPT, Result};
use crate::ids;
use crate::namespace::Namespace;
use crate::peers::{Local, place, process_alive};
use crate::queue::Wakes;
use crate::space::layout::{Kind, MAX_PROCESSES, Shared};
use crate::sys;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

/// A process's adjustments: words with the adjustment, and the epoch above it, follow.
#[repr(C)]
pub(super) struct Undo {
    next: AtomicU64,
    set: AtomicU64,
    id: AtomicU64,
    process: AtomicU64,
    pid: AtomicU64,
    pub active: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Undo {}

impl Set {
    /// The words of an entry.
    #[inline(always)]
    pub(super) fn adjustments(&self, local: &Local, entry: u64) -> Result<&'static [AtomicU64]> {
        local.space.slice(entry + size_of::<Undo>() as u64, self.count()?)
    }

    #[inline]
    pub(super) fn is_own(&self, undo: &Undo, local: &Local, offset: u64) -> bool {
        undo.process.load(Relaxed) == local.process
            && undo.set.load(Relaxed) == offset
            && undo.id.load(Relaxed) == self.object.id.load(Relaxed)
    }

    /// This process's entry, if this thread remembers it.
    #[inline(always)]
    pub(super) fn remembered_undo(
        &self,
        local: &Local,
        offset: u64,
    ) -> Option<(&'static Undo, u64)> {
        let at = local.remembered_undo(offset)?;
        let undo: &Undo = local.space.view(at).ok()?;
        self.is_own(undo, local, offset).then_some((undo, at))
    }

    /// This process's entry, if it has one.
    pub(super) fn own_undo(
        &self,
        local: &Local,
        offset: u64,
    ) -> Result<Option<(&'static Undo, u64)>> {
        if let Some(found) = self.remembered_undo(local, offset) {
            return Ok(Some(found));
        }
        let mut at = self.object.chains[0].load(Relaxed);
        for _ in 0..MAX_PROCESSES {
            if at == 0 {
                return Ok(None);
            }
            let undo: &Undo = local.space.view(at)?;
            if self.is_own(undo, local, offset) {
                local.remember_undo(offset, at);
                return Ok(Some((undo, at)));
            }
            at = undo.next.load(Relaxed);
        }
        Err(CORRUPT)
    }

    /// This process's entry, made if need be.
    pub(super) fn make_undo(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<(&'static Undo, u64)> {
        if let Some(found) = self.own_undo(local, offset)? {
            return Ok(found);
        }
        // Each process that was alone with the set, and owes it nothing, would else leave one.
        self.settle_slowly(local, offset, wakes)?;
        let bytes = size_of::<Undo>() as u64 + 8 * self.count()?;
        let heap = local.heap()?;
        let at = heap.take(bytes)?;
        ids::zero(local, at, bytes)?;
        let undo: &Undo = local.space.view(at)?;
        undo.set.store(offset, Relaxed);
        undo.id.store(self.object.id.load(Relaxed), Relaxed);
        undo.process.store(local.process, Relaxed);
        undo.pid.store(local.pid.into(), Relaxed);
        undo.next.store(self.object.chains[0].load(Relaxed), Relaxed);
        if let Some(process) = place(local.space, local.process) {
            process.undoes.store(1, SeqCst);
        }
        local.set(&self.object.chains[0], at)?;
        local.commit();
        local.remember_undo(offset, at);
        Ok((undo, at))
    }

    /// The other processes with adjustments.
    pub(super) fn holders(&self, local: &Local) -> Result<Vec<u64>> {
        let (mut at, mut holders) = (self.object.chains[0].load(Relaxed), Vec::new());
        for _ in 0..=MAX_PROCESSES {
            if at == 0 {
                return Ok(holders);
            }
            let undo: &Undo = local.space.view(at)?;
            let process = undo.process.load(Relaxed);
            if process != local.process && undo.active.load(Relaxed) != 0 {
                holders.push(process);
            }
            at = undo.next.load(Relaxed);
        }
        Err(CORRUPT)
    }

    /// Applies the adjustments of processes that have died.
    #[inline]
    pub(super) fn settle(
        &self,
        local: &Local,
        offset: u64,
        own: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        if self.active.load(Relaxed) == own {
            return Ok(());
        }
        self.settle_slowly(local, offset, wakes)
    }

    #[cold]
    pub(super) fn settle_slowly(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<()> {
        let semaphores = self.semaphores(local)?;
        let (mut link, mut active, mut changed) = (&self.object.chains[0], 0u64, false);
        for _ in 0..=MAX_PROCESSES {
            let at = link.load(Relaxed);
            if at == 0 {
                if self.active.load(Relaxed) != active {
                    local.set(&self.active, active)?;
                    local.commit();
                }
                if changed {
                    self.otime.store(sys::now(), Relaxed);
                    self.poke(local, offset, wakes)?;
                }
                return Ok(());
            }
            let undo: &Undo = local.space.view(at)?;
            let process = undo.process.load(Relaxed);
            if process == local.process || process_alive(local.space, process) {
                active = active.saturating_add(undo.active.load(Relaxed));
                link = &undo.next;
                continue;
            }
            for (word, semaphore) in self.adjustments(local, at)?.iter().zip(semaphores) {
                let adjustment = semaphore.adjustment(word);
                if adjustment != 0 {
                    let value = (semaphore.value() + adjustment).clamp(0, MOST);
                    semaphore.set(local, value, undo.pid.load(Relaxed) as u32)?;
                    local.set(word, 0)?;
                    local.commit();
                    changed = true;
                }
            }
            let heap = local.heap()?;
            local.set(link, undo.next.load(Relaxed))?;
            local.set(&undo.process, 0)?;
            heap.free(at)?;
            local.commit();
        }
        Err(CORRUPT)
    }
}

impl Namespace {
    /// Applies this process's adjustments, as its end would (`unshare(CLONE_SYSVSEM)`).
    #[doc(hidden)]
    pub fn apply_adjustments(&self) -> Result<()> {
        let (_call, local) = self.begin()?;
        let mut wakes = Wakes::new();
        let _section = local.enter();
        for entry in local.entries(Kind::Sem)? {
            let offset = entry.object.load(Acquire);
            if offset == 0 {
                continue;
            }
            let set: &Set = local.space.view(offset)?;
            let _held = local.lock(&set.object.lock)?;
            if let Some((undo, _)) = set.own_undo(local, offset)? {
                local.forget_undo(offset);
                // Nobody's name.
                undo.process.store(0, Relaxed);
                set.settle_slowly(local, offset, &mut wakes)?;
            }
        }
        Ok(())
    }
}
