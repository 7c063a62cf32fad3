// SPDX-License-Identifier: MIT OR Apache-2.0
//! `semop` and `semtimedop`: an operation that is tried, and waits.

use super::blocked::Blocked;
use super::{SemOp, Set};
use crate::error::{Errno, Result};
use crate::lock::Held;
use crate::namespace::Namespace;
use crate::object::ALIVE;
use crate::peers::{Local, Section};
use crate::queue::{Wait, Wakes, failure};
use crate::sys;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// A waiter that has waited so long, and lost so often, makes newcomers queue up.
const STARVES: Duration = Duration::from_millis(50);

impl Set {
    /// Whether the part of an operation may be possible by now. Looks without the lock.
    fn may_do(&self, local: &Local, blocked: Blocked) -> bool {
        let semaphore = self.semaphores(local).ok().and_then(|s| s.get(usize::from(blocked.num)));
        self.object.state.load(Relaxed) != ALIVE
            || semaphore.is_none_or(|semaphore| blocked.possible(semaphore.value()))
    }

    fn leave(&self, local: &Local, offset: u64) -> Result<()> {
        local.roll_back();
        if self.starving.load(Relaxed) == u64::from(local.number) {
            self.starving.store(0, Relaxed);
        }
        if local.waits_on(offset) {
            local.dequeue(&self.queue, local.number.into())?;
            local.commit();
        }
        Ok(())
    }
}

impl Namespace {
    /// `semop`, and `semtimedop` with a time limit.
    #[inline]
    pub fn semop(&self, id: i32, ops: &[SemOp], timeout: Option<Duration>) -> Result<()> {
        let (_call, local) = self.begin()?;
        match ops {
            [op] if op.sem_op != 0 && self.limits.semopm != 0 => {
                let _section = local.enter();
                if let Some((set, offset, _held)) = local.remembered_locked::<Set>(id) {
                    if set.attempt_one(local, offset, op) {
                        return Ok(());
                    }
                }
            }
            _ => {}
        }
        self.operate(local, id, ops, timeout)
    }

    /// [`Namespace::semop`], of whatever operation.
    #[inline(never)]
    fn operate(
        &self,
        local: &'static Local,
        id: i32,
        ops: &[SemOp],
        timeout: Option<Duration>,
    ) -> Result<()> {
        if ops.len() as u64 > self.limits.semopm {
            return Err(Errno(libc::E2BIG));
        }
        if ops.is_empty() || id < 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut wakes = Wakes::new();
        let section = local.enter();
        let (set, offset, held) = local.find_locked::<Set>(id)?;
        let operation = Operation { local, set, offset, ops };
        let result = operation.attempt(&mut wakes);
        if let Ok(Some(blocked)) = result {
            return operation.wait(timeout, blocked, Inside { held, section }, wakes);
        }
        drop(held);
        drop(section);
        wakes.wake();
        if result == Err(Errno(libc::EAGAIN)) {
            // The operation may be tried again and again, without a wait.
            local.mark_the_unmarked();
        }
        result.map(drop)
    }
}

/// A set's lock, and the section in which alone it may be touched.
struct Inside {
    held: Held<'static>,
    section: Section<'static>,
}

/// An operation on a set.
struct Operation<'o> {
    local: &'static Local,
    set: &'static Set,
    offset: u64,
    ops: &'o [SemOp],
}

impl Operation<'_> {
    #[inline]
    fn attempt(&self, wakes: &mut Wakes<'static>) -> Result<Option<Blocked>> {
        self.set.attempt(self.local, self.offset, self.ops, wakes)
    }

    fn is_starving(&self) -> bool {
        self.set.starving.load(Relaxed) == u64::from(self.local.number)
    }

    /// Waits until it is done.
    #[cold]
    fn wait(
        &self,
        timeout: Option<Duration>,
        mut blocked: Blocked,
        inside: Inside,
        mut wakes: Wakes<'static>,
    ) -> Result<()> {
        let Operation { local, set, offset, .. } = *self;
        // The lock goes first.
        let (mut section, mut held) = (inside.section, inside.held);
        let mut wait = Wait::until(timeout.map(|time| sys::monotonic().saturating_add(time)));
        if local.lingers() {
            drop(held);
            wakes.wake();
            local.linger(|_| set.may_do(local, blocked));
            held = local.lock(&set.object.lock)?;
            if set.object.state.load(Relaxed) != ALIVE {
                return Err(Errno(libc::EIDRM));
            }
            match self.attempt(&mut wakes) {
                Ok(Some(still)) => blocked = still,
                over => return over.map(drop),
            }
        }
        loop {
            self.queue_up(blocked, &mut wakes)?;
            let (dying, holders) = self.who_may_die(&wait)?;
            drop(held);
            drop(section);
            wakes.wake();
            let pokes = wait.pokes;
            let woken = local.wait(&mut wait, dying, &holders);
            section = local.enter();
            if local.was_removed::<Set>(offset)? {
                return Err(Errno(libc::EIDRM));
            }
            held = local.lock(&set.object.lock)?;
            if !local.waits_on(offset) || set.object.state.load(Relaxed) != ALIVE {
                set.leave(local, offset)?;
                return Err(Errno(libc::EIDRM));
            }
            let error = match (self.attempt(&mut wakes), failure(woken)) {
                (Ok(Some(still)), None) => {
                    blocked = still;
                    self.starve(&wait, blocked, wait.pokes > pokes);
                    continue;
                }
                (Ok(None), _) => None,
                (Ok(Some(_)), error) => error,
                (Err(error), _) => Some(error),
            };
            local.waited(&wait);
            let starved = self.is_starving();
            set.leave(local, offset)?;
            if error.is_some() || starved {
                let _ = set.poke(local, offset, &mut wakes);
            }
            return error.map_or(Ok(()), Err);
        }
    }

    /// Says in the set's queue what this thread waits for.
    fn queue_up(&self, blocked: Blocked, wakes: &mut Wakes<'static>) -> Result<()> {
        let Operation { local, set, offset, .. } = *self;
        let waits_for = set.zero.load(Relaxed).max(blocked.waits_for());
        set.zero.store(waits_for, Relaxed);
        let want = blocked.words();
        if !local.waits_on(offset) {
            local.enqueue(&set.queue, offset, want)?;
            local.prepare();
            local.commit();
            return Ok(());
        }
        local.thread.want[0].store(want[0], Relaxed);
        local.thread.want[1].store(want[1], Relaxed);
        let poked = local.is_poked(local.thread);
        local.prepare();
        if poked || self.is_starving() {
            // A value that it was poked, or has held others up, for may do for somebody else.
            let _ = set.poke(local, offset, wakes);
        }
        Ok(())
    }

    /// Whether the death of a process may change the set, and, for an idle waiter, of which ones.
    fn who_may_die(&self, wait: &Wait) -> Result<(bool, Vec<u64>)> {
        let own = self.set.own_undo(self.local, self.offset).ok().flatten();
        let own = own.map_or(0, |(undo, _)| undo.active.load(Relaxed));
        let dying = self.set.active.load(Relaxed) != own;
        let holders = if dying && wait.is_idle() { self.set.holders(self.local)? } else { vec![] };
        Ok((dying, holders))
    }

    /// Has others let this thread go first, if it has waited long and lost often.
    fn starve(&self, wait: &Wait, blocked: Blocked, lost: bool) {
        let waited = wait.began.map(|began| sys::monotonic().saturating_sub(began));
        if wait.pokes > 2
            && waited.is_some_and(|waited| waited > STARVES)
            && self.set.may_starve(self.local, blocked, lost)
        {
            self.set.starving.store(self.local.number.into(), Relaxed);
        }
    }
}
