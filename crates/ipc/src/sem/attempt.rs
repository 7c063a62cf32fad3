// SPDX-License-Identifier: MIT OR Apache-2.0
//! An operation that is tried: done and committed, or taken back.

use super::blocked::Blocked;
use super::{AT_ZERO, IPC_NOWAIT, MOST, NOBODY, SEM_UNDO, SemOp, Set, value_pid};
use crate::error::{Errno, Result};
use crate::peers::Local;
use crate::permission::{READ, WRITE};
use crate::queue::Wakes;
use crate::sys;
use std::sync::atomic::Ordering::*;

impl Set {
    /// Does [`Set::attempt`] where it is little: one part that changes a value, nobody in the
    /// queue, no adjustments of others. `false`: it is more, and nothing was done.
    #[inline]
    pub(super) fn attempt_one(&self, local: &Local, offset: u64, op: &SemOp) -> bool {
        let change = i32::from(op.sem_op);
        let Ok(semaphores) = self.semaphores(local) else { return false };
        let Some(semaphore) = semaphores.get(usize::from(op.sem_num)) else { return false };
        let new = semaphore.value() + change;
        let alone = self.queue.first.load(Relaxed) == 0 && self.starving.load(Relaxed) == 0;
        let possible = change != 0 && (0..=MOST).contains(&new);
        if !alone || !possible || !self.object.clearly_permits(WRITE) {
            return false;
        }
        let (active, new) = (self.active.load(Relaxed), value_pid(new, local.pid));
        if op.sem_flg & SEM_UNDO == 0 {
            if active != 0 {
                return false;
            }
            semaphore.value_pid.store(new, Relaxed);
        } else {
            let Some((undo, at)) = self.remembered_undo(local, offset) else { return false };
            let Ok(adjustments) = self.adjustments(local, at) else { return false };
            let Some(word) = adjustments.get(usize::from(op.sem_num)) else { return false };
            let old = semaphore.adjustment(word);
            let adjustment = old - change;
            if undo.active.load(Relaxed) != active || !(-MOST - 1..=MOST).contains(&adjustment) {
                return false;
            }
            let count = active.wrapping_add((adjustment != 0).into());
            let count = count.wrapping_sub((old != 0).into());
            let epoch = semaphore.epoch.load(Relaxed) << 32;
            let changes = [
                (word, epoch | u64::from(adjustment as u16)),
                (&undo.active, count),
                (&self.active, count),
                (&semaphore.value_pid, new),
            ];
            if local.set_all(changes).is_err() {
                return false;
            }
            local.commit();
        }
        self.stamp();
        true
    }

    #[inline]
    pub(super) fn stamp(&self) {
        let now = sys::now();
        if self.otime.load(Relaxed) != now {
            self.otime.store(now, Relaxed);
        }
    }

    /// Tries an operation. `None`: it is done and committed.
    #[inline]
    pub(super) fn attempt(
        &self,
        local: &Local,
        offset: u64,
        ops: &[SemOp],
        wakes: &mut Wakes<'static>,
    ) -> Result<Option<Blocked>> {
        let (mut undos, mut alters, mut max) = (false, false, 0);
        for op in ops {
            undos |= op.sem_flg & SEM_UNDO != 0;
            alters |= op.sem_op != 0;
            max = max.max(op.sem_num);
        }
        let semaphores = self.semaphores(local)?;
        if usize::from(max) >= semaphores.len() {
            return Err(Errno(libc::EFBIG));
        }
        let mut own = None;
        if undos {
            own = Some(self.make_undo(local, offset, wakes)?);
        } else if self.active.load(Relaxed) != 0 {
            own = self.own_undo(local, offset)?;
        }
        self.object.permits(if alters { WRITE } else { READ })?;
        let active = own.map_or(0, |(undo, _)| undo.active.load(Relaxed));
        self.settle(local, offset, active, wakes)?;
        let adjustments = match own {
            Some((_, at)) if undos => self.adjustments(local, at)?,
            _ => &[],
        };
        let (mut raised, mut lowered, mut zeroed) = (false, false, false);
        // Adjustments that are no longer zero, less those that are zero now.
        let mut more = 0i64;
        for (part, op) in ops.iter().enumerate() {
            let semaphore = &semaphores[usize::from(op.sem_num)];
            let (value, change) = (semaphore.value(), i32::from(op.sem_op));
            let new = value + change;
            if change == 0 && value != 0
                || new < 0
                || change <= 0 && self.lets_go_first(local, ops, part, value)
            {
                local.roll_back();
                if op.sem_flg & IPC_NOWAIT != 0 {
                    return Err(Errno(libc::EAGAIN));
                }
                return Ok(Some(Blocked::at(ops, part)));
            }
            if new > MOST {
                return Err(Errno(libc::ERANGE));
            }
            let word = adjustments.get(usize::from(op.sem_num));
            let word = word.filter(|_| op.sem_flg & SEM_UNDO != 0);
            if let Some(word) = word {
                let old = semaphore.adjustment(word);
                let adjustment = old - change;
                if !(-MOST - 1..=MOST).contains(&adjustment) {
                    return Err(Errno(libc::ERANGE));
                }
                let epoch = semaphore.epoch.load(Relaxed) << 32;
                local.set(word, epoch | u64::from(adjustment as u16))?;
                more += i64::from(adjustment != 0) - i64::from(old != 0);
            }
            semaphore.set(local, new, local.pid)?;
            raised |= change > 0;
            lowered |= change < 0;
            zeroed |= new == 0 && change < 0;
        }
        if let Some((undo, _)) = own.filter(|_| more != 0) {
            for active in [&undo.active, &self.active] {
                local.set(active, active.load(Relaxed).saturating_add_signed(more))?;
            }
        }
        self.stamp();
        local.commit();
        if self.queue.first.load(Relaxed) != 0 {
            let may_come = match self.zero.load(Relaxed) {
                NOBODY => false,
                AT_ZERO => zeroed,
                _ => lowered,
            };
            if raised || may_come {
                self.poke(local, offset, wakes)?;
            }
        }
        Ok(None)
    }
}
