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
        let section = local.enter();
        let (set, offset, held) = local.find_locked::<Set>(id)?;
        let mut wakes = Wakes::new();
        let blocked = set.attempt(local, offset, ops, &mut wakes);
        match blocked {
            Ok(None) => {
                drop(held);
                drop(section);
                wakes.wake();
                Ok(())
            }
            Err(error) => {
                drop(held);
                drop(section);
                wakes.wake();
                if error.0 == libc::EAGAIN {
                    // The operation may be tried again and again, without a wait.
                    local.mark_the_unmarked();
                }
                Err(error)
            }
            Ok(Some(blocked)) => {
                wait_until_done(local, set, offset, ops, timeout, blocked, section, held, wakes)
            }
        }
    }
}

/// The rest of an operation that cannot be done at once. Arguments are dropped from the last to the
/// first: the lock before the section, in which alone it may be touched.
#[cold]
#[expect(clippy::too_many_arguments, reason = "the state of its only caller")]
fn wait_until_done(
    local: &'static Local,
    set: &'static Set,
    offset: u64,
    ops: &[SemOp],
    timeout: Option<Duration>,
    mut blocked: Blocked,
    mut section: Section<'static>,
    mut held: Held<'static>,
    mut wakes: Wakes<'static>,
) -> Result<()> {
    let deadline = timeout.map(|timeout| sys::monotonic().saturating_add(timeout));
    let mut wait = Wait::until(deadline);
    if local.lingers() {
        drop(held);
        wakes.wake();
        local.linger(|_| set.may_do(local, blocked));
        held = local.lock(&set.object.lock)?;
        if set.object.state.load(Relaxed) != ALIVE {
            return Err(Errno(libc::EIDRM));
        }
        let result = set.attempt(local, offset, ops, &mut wakes);
        if let Ok(Some(still)) = result {
            blocked = still;
        } else {
            drop(held);
            drop(section);
            wakes.wake();
            return result.map(drop);
        }
    }
    loop {
        let waits_for = set.zero.load(Relaxed).max(blocked.waits_for());
        set.zero.store(waits_for, Relaxed);
        let want = blocked.words();
        if local.waits_on(offset) {
            local.thread.want[0].store(want[0], Relaxed);
            local.thread.want[1].store(want[1], Relaxed);
            let poked = local.is_poked(local.thread);
            local.prepare();
            if poked || set.starving.load(Relaxed) == u64::from(local.number) {
                // A value that it was poked, or has held others up, for may do for somebody else.
                let _ = set.poke(local, offset, &mut wakes);
            }
        } else {
            let queued = local.enqueue(&set.queue, offset, want);
            if let Err(error) = queued {
                drop(held);
                return Err(error);
            }
            local.prepare();
            local.commit();
        }
        let own = set.own_undo(local, offset).ok().flatten();
        let dying = set.active.load(Relaxed) != own.map_or(0, |(u, _)| u.active.load(Relaxed));
        let idle = dying && wait.is_idle();
        let holders = if idle { set.holders(local)? } else { Vec::new() };
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
        let result = set.attempt(local, offset, ops, &mut wakes);
        let error = match (result, failure(woken)) {
            (Ok(Some(still)), None) => {
                blocked = still;
                let waited = wait.began.map(|began| sys::monotonic().saturating_sub(began));
                if wait.pokes > 2
                    && waited.is_some_and(|waited| waited > STARVES)
                    && set.may_starve(local, blocked, wait.pokes > pokes)
                {
                    set.starving.store(local.number.into(), Relaxed);
                }
                continue;
            }
            (Ok(None), _) => None,
            (Ok(Some(_)), error) => error,
            (Err(error), _) => Some(error),
        };
        local.waited(&wait);
        let starved = set.starving.load(Relaxed) == u64::from(local.number);
        set.leave(local, offset)?;
        if error.is_some() || starved {
            let _ = set.poke(local, offset, &mut wakes);
        }
        drop(held);
        drop(section);
        wakes.wake();
        return error.map_or(Ok(()), Err);
    }
}
