// SPDX-License-Identifier: MIT OR Apache-2.0
//! A waiter that others let go first.

use super::blocked::Blocked;
use super::{IPC_NOWAIT, SemOp, Set};
use crate::peers::{Local, thread_dead};
use crate::space::layout::Thread;
use std::sync::atomic::Ordering::*;

impl Set {
    /// Whether somebody starves to whom this part of an operation, which takes units or waits for
    /// zero, is to leave the semaphore as it is. `value`: before the part.
    #[inline]
    pub(super) fn lets_go_first(
        &self,
        local: &Local,
        ops: &[SemOp],
        part: usize,
        value: i32,
    ) -> bool {
        self.starving.load(Relaxed) != 0 && self.lets_starver_go(local, ops, part, value)
    }

    #[cold]
    pub(super) fn lets_starver_go(
        &self,
        local: &Local,
        ops: &[SemOp],
        part: usize,
        value: i32,
    ) -> bool {
        let Some((number, thread)) = self.starver(local) else { return false };
        let (own, its) = (Blocked::at(ops, part), Blocked::of_waiter(thread));
        // Not what earlier parts of this operation, which may be undone, have made of it.
        let before = value + i32::from(ops[part].sem_op) - own.sum;
        let after = if own.zero {
            // Zero is taken by who raises after it has found it, as a mutex that is free at zero
            // (`semop(2)` has one). Who only raises is held up by nobody.
            let rest = ops[part..].iter().filter(|op| op.sem_num == own.num);
            rest.fold(value, |value, op| value.saturating_add(op.sem_op.into()))
        } else {
            value + i32::from(ops[part].sem_op)
        };
        number != u64::from(local.number)
            && ops[part].sem_flg & IPC_NOWAIT == 0
            && own.num == its.num
            && (its.zero || !own.zero)
            && its.possible(before)
            && !its.possible(after)
    }

    /// The thread that starves, if one does.
    pub(super) fn starver(&self, local: &Local) -> Option<(u64, &'static Thread)> {
        let number = self.starving.load(Relaxed);
        if number == 0 {
            return None;
        }
        let offset = local.space.offset_of(self);
        let waits = |thread: &&Thread| {
            thread.waits_on.load(Relaxed) == offset && !thread_dead(local.space, thread)
        };
        let found = local.space.thread(number).ok().filter(waits);
        if found.is_none() {
            self.starving.store(0, Relaxed);
        }
        found.map(|thread| (number, thread))
    }

    /// Whether this thread, which waits long, may be the one that others let go first. `lost`: it
    /// was poked, and somebody was quicker.
    ///
    /// The set has one such place. A thread that cannot go on holds nobody up, so it may lose the
    /// place to somebody who loses units that do come; but not to one that wants the same of the
    /// same semaphore, or more, for it was there before. Whoever takes the place pokes others as
    /// it goes on waiting.
    pub(super) fn may_starve(&self, local: &Local, blocked: Blocked, lost: bool) -> bool {
        let Some((number, thread)) = self.starver(local) else { return true };
        let its = Blocked::of_waiter(thread);
        let semaphores = self.semaphores(local).unwrap_or_default();
        let semaphore = semaphores.get(usize::from(its.num));
        lost && number != u64::from(local.number)
            && !semaphore.is_some_and(|semaphore| its.possible(semaphore.value()))
            && !its.comes_with(blocked)
    }
}
