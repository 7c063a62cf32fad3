// SPDX-License-Identifier: MIT OR Apache-2.0
//! Semaphore sets.
//!
//! An operation takes the set's lock, does its parts one after the other as logged changes, and
//! commits, or takes them back and waits in the set's queue. Whoever raises a value, or brings one
//! to zero, pokes those whose turn may have come; they try for themselves. A newcomer may be
//! quicker than who was poked (the kernel hands the units over instead), which is what makes a
//! semaphore under contention fast; a waiter that lost several times and waits long marks the set
//! as *starving*, and newcomers leave it the units, or the zero, that it waits for.
//!
//! **Invariant: who starves waits for nobody that it holds up.** Others hold back only where its
//! blocked part is possible with the values as they are, and would not be after theirs. Who made it
//! possible has poked it. It takes its units or finds another part blocked, which it says under the
//! same lock and pokes those whom it has held up. If it dies, the next to look finds it dead.
//!
//! **SEM_UNDO.** A set has a list of adjustments per process, changed in the transaction of the
//! operation. Whoever comes next after the process's death applies them: every call looks at the
//! processes with adjustments that are not zero, if there are others than its own
//! ([`Set::active`]); sleepers look every 40 ms while there are. SETVAL and SETALL void adjustments
//! by raising the semaphore's epoch.

use crate::error::{CORRUPT, Errno, Result};
use crate::ids::{self, Request};
use crate::namespace::{Namespace, Owner, Status};
use crate::object::{ALIVE, Is, Object};
use crate::peers::{Local, process_alive, thread_dead};
use crate::permission::{READ, WRITE};
use crate::queue::{Queue, Wait, Wakes, failure};
use crate::space::layout::{Kind, MAX_PROCESSES, Shared, Thread};
use crate::sys;
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

pub use libc::sembuf as SemOp;

/// The greatest value of a semaphore (SEMVMX), and of an adjustment (SEMAEM).
pub const MOST: i32 = 32767;

const SEM_UNDO: i16 = libc::SEM_UNDO as i16;
const IPC_NOWAIT: i16 = libc::IPC_NOWAIT as i16;

/// A waiter that has waited so long, and lost so often, makes newcomers queue up.
const STARVES: Duration = Duration::from_millis(50);

#[repr(C)]
pub(crate) struct Set {
    object: Object,
    count: AtomicU64,
    otime: AtomicU64,
    queue: Queue,
    /// Adjustments that are not zero, of all processes. At least as many as there are.
    active: AtomicU64,
    /// A thread that others let go first.
    starving: AtomicU64,
    /// Whether somebody may wait for zero: one of the constants below.
    zero: AtomicU64,
}

const NOBODY: u64 = 0;
/// For a value that is zero.
const AT_ZERO: u64 = 1;
/// For one that is zero once earlier parts of the same operation have changed it.
const AT_A_VALUE: u64 = 2;

#[repr(C)]
struct Semaphore {
    /// The value, and above it the number of the last process.
    value_pid: AtomicU64,
    /// Adjustments of other epochs are void.
    epoch: AtomicU64,
}

/// A process's adjustments: words with the adjustment, and the epoch above it, follow.
#[repr(C)]
struct Undo {
    next: AtomicU64,
    set: AtomicU64,
    id: AtomicU64,
    process: AtomicU64,
    pid: AtomicU64,
    active: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Set {}
// SAFETY: as above.
unsafe impl Shared for Semaphore {}
// SAFETY: as above.
unsafe impl Shared for Undo {}

#[inline]
fn value_pid(value: i32, pid: u32) -> u64 {
    value as u64 & 0x7fff | u64::from(pid) << 32
}

impl Semaphore {
    #[inline]
    fn value(&self) -> i32 {
        i32::from(self.value_pid.load(Relaxed) as u16 & 0x7fff)
    }

    #[inline]
    fn set(&self, local: &Local, value: i32, pid: u32) -> Result<()> {
        local.set(&self.value_pid, value_pid(value, pid))
    }

    #[inline]
    fn adjustment(&self, word: &AtomicU64) -> i32 {
        let word = word.load(Relaxed);
        let valid = (word >> 32) as u32 == self.epoch.load(Relaxed) as u32;
        if valid { i32::from(word as i16) } else { 0 }
    }
}

/// The part of an operation that cannot be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Blocked {
    num: u16,
    /// What the operation adds to the semaphore, with this part.
    sum: i32,
    /// Whether the part waits for zero.
    zero: bool,
}

impl Blocked {
    #[cold]
    fn at(ops: &[SemOp], part: usize) -> Blocked {
        let num = ops[part].sem_num;
        let same = ops[..=part].iter().filter(|op| op.sem_num == num);
        let sum = same.map(|op| i32::from(op.sem_op)).sum();
        Blocked { num, sum, zero: ops[part].sem_op == 0 }
    }

    /// Whether the part can be done if the semaphore has that value before the operation.
    fn possible(self, value: i32) -> bool {
        let then = value.saturating_add(self.sum);
        if self.zero { then == 0 } else { then >= 0 }
    }

    /// Whether this part is possible with each value with which the other one is.
    fn comes_with(self, other: Blocked) -> bool {
        (self.num, self.zero) == (other.num, other.zero)
            && (self.sum == other.sum || !self.zero && self.sum > other.sum)
    }

    /// For [`Set::zero`].
    fn waits_for(self) -> u64 {
        match (self.zero, self.sum) {
            (false, _) => NOBODY,
            (true, 0) => AT_ZERO,
            (true, _) => AT_A_VALUE,
        }
    }

    /// As a waiter's `want`.
    fn words(self) -> [u64; 2] {
        [self.num.into(), u64::from(self.sum as u32) | u64::from(self.zero) << 32]
    }

    fn of_waiter(thread: &Thread) -> Blocked {
        let [num, want] = [0, 1].map(|i| thread.want[i].load(Relaxed));
        Blocked { num: num as u16, sum: want as i32, zero: want >> 32 != 0 }
    }
}

impl Is for Set {
    const KIND: Kind = Kind::Sem;

    fn object(&self) -> &Object {
        &self.object
    }

    fn expel(&self, local: &Local, offset: u64) -> Result<()> {
        local.expel(&self.queue, offset)
    }

    fn discard(&self, _: &Local, _: i32) {}
}

/// More semaphores than a set may have.
const TOO_MANY: u64 = 65537;

impl Set {
    #[inline]
    fn count(&self) -> Result<u64> {
        Some(self.count.load(Relaxed)).filter(|&count| count < TOO_MANY).ok_or(CORRUPT)
    }

    #[inline]
    fn semaphores(&self, local: &Local) -> Result<&'static [Semaphore]> {
        local.space.slice(self.object.block.load(Relaxed), self.count()?)
    }

    /// The words of an entry.
    #[inline]
    fn adjustments(&self, local: &Local, entry: u64) -> Result<&'static [AtomicU64]> {
        local.space.slice(entry + size_of::<Undo>() as u64, self.count()?)
    }

    #[inline]
    fn is_own(&self, undo: &Undo, local: &Local, offset: u64) -> bool {
        undo.process.load(Relaxed) == local.process
            && undo.set.load(Relaxed) == offset
            && undo.id.load(Relaxed) == self.object.id.load(Relaxed)
    }

    /// This process's entry, if this thread remembers it.
    #[inline(always)]
    fn remembered_undo(&self, local: &Local, offset: u64) -> Option<(&'static Undo, u64)> {
        let at = local.remembered_undo(offset)?;
        let undo: &Undo = local.space.view(at).ok()?;
        self.is_own(undo, local, offset).then_some((undo, at))
    }

    /// This process's entry, if it has one.
    fn own_undo(&self, local: &Local, offset: u64) -> Result<Option<(&'static Undo, u64)>> {
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
    fn make_undo(
        &self,
        local: &Local,
        offset: u64,
        wakes: &mut Wakes<'static>,
    ) -> Result<(&'static Undo, u64)> {
        if let Some(found) = self.own_undo(local, offset)? {
            return Ok(found);
        }
        // Else one would be left of each process that was alone with the set and owes it nothing.
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
        local.set(&self.object.chains[0], at)?;
        local.commit();
        local.remember_undo(offset, at);
        Ok((undo, at))
    }

    /// Applies the adjustments of processes that have died.
    #[inline]
    fn settle(
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
    fn settle_slowly(&self, local: &Local, offset: u64, wakes: &mut Wakes<'static>) -> Result<()> {
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

    /// Pokes those whose operation may be possible now.
    #[cold]
    fn poke(&self, local: &Local, offset: u64, wakes: &mut Wakes<'static>) -> Result<()> {
        let semaphores = self.semaphores(local)?;
        // What waiters before will take, of the first few semaphores that somebody takes from.
        let mut taken = [(0usize, 0i32); 8];
        // Whether to look behind those who take what there is: at others who wait for other
        // semaphores, or for a value.
        let all = match (semaphores, self.zero.load(Relaxed)) {
            ([_], NOBODY) => false,
            ([only], AT_ZERO) => only.value() == 0,
            _ => true,
        };
        // Who starves goes first: those whom it holds up would only wake each other in turns. If it
        // waits for zero, that is everybody else at its semaphore: they would take units that it
        // needs, or raise what it has to find at zero. (Who would not looks for itself, and is
        // poked when it is done.)
        let first = self.starver(local);
        let aside = first.and_then(|(number, thread)| {
            let its = Blocked::of_waiter(thread);
            let value = semaphores.get(usize::from(its.num))?.value();
            (its.zero && its.possible(value)).then_some((number, its.num))
        });
        let mut zero = NOBODY;
        let mut each = |number, thread: &'static Thread| {
            let blocked = Blocked::of_waiter(thread);
            let num = usize::from(blocked.num);
            let Some(semaphore) = semaphores.get(num) else { return true };
            let value = semaphore.value();
            zero = zero.max(blocked.waits_for());
            if aside.is_some_and(|(starver, at)| starver != number && at == blocked.num) {
                return true;
            }
            if blocked.zero {
                if !blocked.possible(value) {
                    return true;
                }
            } else {
                let place = taken.iter_mut().find(|(n, t)| *t == 0 || *n == num);
                let left = value.saturating_sub(place.as_ref().map_or(0, |place| place.1));
                if !blocked.possible(left) {
                    // Others may want less.
                    return left > 0 || all;
                }
                if let Some(place) = place {
                    *place = (num, place.1.saturating_sub(blocked.sum));
                }
            }
            if number != u64::from(local.number) && !local.is_poked(thread) && local.poke(thread) {
                wakes.push(thread);
            }
            true
        };
        if let Some((number, thread)) = first {
            each(number, thread);
        }
        let first = first.map(|(number, _)| number);
        local.waiters(&self.queue, offset, |number, thread| {
            first == Some(number) || each(number, thread)
        })?;
        if all {
            self.zero.store(zero, Relaxed);
        }
        Ok(())
    }

    /// Whether the part of an operation may be possible by now. Looks without the lock.
    fn may_do(&self, local: &Local, blocked: Blocked) -> bool {
        let semaphore = self.semaphores(local).ok().and_then(|s| s.get(usize::from(blocked.num)));
        self.object.state.load(Relaxed) != ALIVE
            || semaphore.is_none_or(|semaphore| blocked.possible(semaphore.value()))
    }

    /// What [`Set::attempt`] does, where it is little: one part that changes a value, nobody in the
    /// queue, no adjustments of others. `false`: it is more, and nothing was done.
    #[inline]
    fn attempt_one(&self, local: &Local, offset: u64, op: &SemOp) -> bool {
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
    fn stamp(&self) {
        let now = sys::now();
        if self.otime.load(Relaxed) != now {
            self.otime.store(now, Relaxed);
        }
    }

    /// Tries an operation. `None`: it is done and committed.
    #[inline]
    fn attempt(
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

    /// Whether somebody starves to whom this part of an operation, which takes units or waits for
    /// zero, is to leave the semaphore as it is. `value`: before the part.
    #[inline]
    fn lets_go_first(&self, local: &Local, ops: &[SemOp], part: usize, value: i32) -> bool {
        self.starving.load(Relaxed) != 0 && self.lets_starver_go(local, ops, part, value)
    }

    #[cold]
    fn lets_starver_go(&self, local: &Local, ops: &[SemOp], part: usize, value: i32) -> bool {
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

    /// Who starves, if somebody does.
    fn starver(&self, local: &Local) -> Option<(u64, &'static Thread)> {
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
    /// There is one such place for the set. Who cannot go on holds nobody up, so it may lose the
    /// place to somebody who loses units that do come; but not to one that wants the same of the
    /// same semaphore, or more, for it was there before. Whoever takes the place pokes others as
    /// it goes on waiting.
    fn may_starve(&self, local: &Local, blocked: Blocked, lost: bool) -> bool {
        let Some((number, thread)) = self.starver(local) else { return true };
        let its = Blocked::of_waiter(thread);
        let semaphores = self.semaphores(local).unwrap_or_default();
        let semaphore = semaphores.get(usize::from(its.num));
        lost && number != u64::from(local.number)
            && !semaphore.is_some_and(|semaphore| its.possible(semaphore.value()))
            && !its.comes_with(blocked)
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

/// What `semctl(IPC_INFO)` and `SEM_INFO` tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemInfo {
    pub sets: u64,
    pub semaphores: u64,
    /// The highest slot in use.
    pub highest: i32,
}

/// What `semctl(IPC_STAT)` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemStatus {
    pub status: Status,
    pub otime: u64,
    pub count: u64,
}

impl Namespace {
    /// `semget`.
    pub fn semget(&self, key: i32, count: i32, flags: i32) -> Result<i32> {
        let limits = &self.limits;
        if count < 0 || count as u64 > limits.semmsl {
            return Err(Errno(libc::EINVAL));
        }
        let count = count as u64;
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let request = Request {
            key,
            flags,
            bytes: size_of::<Set>() as u64,
            weight: count,
            most_weight: limits.semmns,
            most: limits.semmni,
        };
        let there = Cell::new(None);
        let fits = |set: &Set| {
            there.set(Some(set.count.load(Relaxed)));
            if count > set.count.load(Relaxed) { Err(Errno(libc::EINVAL)) } else { Ok(()) }
        };
        let id = ids::get::<Set>(local, &request, fits, |local, heap, set, _| {
            if count == 0 {
                return Err(Errno(libc::EINVAL));
            }
            let bytes = count * size_of::<Semaphore>() as u64;
            let block = heap.take(bytes)?;
            ids::zero(local, block, bytes)?;
            local.set(&set.object.block, block)?;
            set.count.store(count, Relaxed);
            Ok(())
        })?;
        let told = &self.space.told;
        match there.get() {
            Some(count) => told.check(Kind::Sem, id, count)?,
            None => told.tell(Kind::Sem, id, count),
        }
        Ok(id)
    }

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
                    // It may be tried again and again, without a wait.
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
    mut section: crate::peers::Section<'static>,
    mut held: crate::lock::Held<'static>,
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
                // What it was poked for, or has held others up for, may do for somebody else.
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
        drop(held);
        drop(section);
        wakes.wake();
        let pokes = wait.pokes;
        let woken = local.wait(&mut wait, dying);
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

/// A set that is locked for a `semctl` command, with the dead's adjustments applied.
struct Open {
    set: &'static Set,
    offset: u64,
    semaphores: &'static [Semaphore],
}

impl Namespace {
    fn with_set<R>(
        &self,
        id: i32,
        wanted: u32,
        f: impl FnOnce(&Local, &Open, &mut Wakes<'static>) -> Result<R>,
    ) -> Result<R> {
        let (_call, local) = self.begin()?;
        local.mark_the_unmarked();
        let section = local.enter();
        let (set, offset, held) = local.find_locked::<Set>(id)?;
        let mut wakes = Wakes::new();
        let result = (|| {
            set.object.permits(wanted)?;
            set.settle(local, offset, 0, &mut wakes)?;
            let semaphores = set.semaphores(local)?;
            f(local, &Open { set, offset, semaphores }, &mut wakes)
        })();
        drop(held);
        drop(section);
        wakes.wake();
        result
    }

    fn with_semaphore<R>(
        &self,
        id: i32,
        num: i32,
        f: impl FnOnce(&Local, &Open, &Semaphore) -> Result<R>,
    ) -> Result<R> {
        self.with_set(id, READ, |local, open, _| {
            let semaphore = usize::try_from(num).ok().and_then(|num| open.semaphores.get(num));
            f(local, open, semaphore.ok_or(Errno(libc::EINVAL))?)
        })
    }

    /// `semctl(GETVAL)`.
    pub fn sem_value(&self, id: i32, num: i32) -> Result<i32> {
        self.with_semaphore(id, num, |_, _, semaphore| Ok(semaphore.value()))
    }

    /// `semctl(GETPID)`.
    pub fn sem_pid(&self, id: i32, num: i32) -> Result<i32> {
        self.with_semaphore(id, num, |_, _, s| Ok((s.value_pid.load(Relaxed) >> 32) as i32))
    }

    /// `semctl(GETNCNT)`, and with `zero` `GETZCNT`.
    pub fn sem_waiters(&self, id: i32, num: i32, zero: bool) -> Result<i32> {
        self.with_semaphore(id, num, |local, open, _| {
            let mut count = 0;
            local.waiters(&open.set.queue, open.offset, |_, thread| {
                let blocked = Blocked::of_waiter(thread);
                count += i32::from(i32::from(blocked.num) == num && blocked.zero == zero);
                true
            })?;
            Ok(count)
        })
    }

    /// How many semaphores a set has, for whoever may change them all.
    pub fn sem_count(&self, id: i32) -> Result<usize> {
        self.with_set(id, WRITE, |_, open, _| {
            self.space.told.check(Kind::Sem, id, open.semaphores.len() as u64)?;
            Ok(open.semaphores.len())
        })
    }

    /// `semctl(GETALL)`.
    pub fn sem_values(&self, id: i32) -> Result<Vec<u16>> {
        self.with_set(id, READ, |_, open, _| {
            self.space.told.check(Kind::Sem, id, open.semaphores.len() as u64)?;
            Ok(open.semaphores.iter().map(|semaphore| semaphore.value() as u16).collect())
        })
    }

    /// `semctl(SETVAL)`.
    pub fn set_sem_value(&self, id: i32, num: i32, value: i32) -> Result<()> {
        if id < 0 {
            return Err(Errno(libc::EINVAL));
        }
        if !(0..=MOST).contains(&value) {
            return Err(Errno(libc::ERANGE));
        }
        let (_call, local) = self.begin()?;
        local.mark_the_unmarked();
        let section = local.enter();
        let (set, offset, held) = local.find_locked::<Set>(id)?;
        let mut wakes = Wakes::new();
        let result = (|| {
            let semaphores = set.semaphores(local)?;
            let semaphore = usize::try_from(num).ok().and_then(|num| semaphores.get(num));
            let semaphore = semaphore.ok_or(Errno(libc::EINVAL))?;
            set.object.permits(WRITE)?;
            set.settle(local, offset, 0, &mut wakes)?;
            local.set(&semaphore.epoch, semaphore.epoch.load(Relaxed).wrapping_add(1))?;
            semaphore.set(local, value, local.pid)?;
            local.set(&set.object.ctime, sys::now())?;
            local.commit();
            set.poke(local, offset, &mut wakes)
        })();
        drop(held);
        drop(section);
        wakes.wake();
        result
    }

    /// `semctl(SETALL)`: as many values as the set has semaphores.
    pub fn set_sem_values(&self, id: i32, values: &[u16]) -> Result<()> {
        self.with_set(id, WRITE, |local, open, wakes| {
            if values.len() != open.semaphores.len() {
                return Err(Errno(libc::EINVAL));
            }
            if values.iter().any(|&value| i32::from(value) > MOST) {
                return Err(Errno(libc::ERANGE));
            }
            // Any number of values at once: a new array takes the old one's place.
            let heap = local.heap()?;
            let bytes = size_of_val(open.semaphores) as u64;
            let at = heap.take(bytes)?;
            let new: &[Semaphore] = local.space.slice(at, values.len() as u64)?;
            for ((new, old), &value) in new.iter().zip(open.semaphores).zip(values) {
                new.value_pid.store(u64::from(value) | u64::from(local.pid) << 32, Relaxed);
                new.epoch.store(old.epoch.load(Relaxed).wrapping_add(1), Relaxed);
            }
            let old = open.set.object.block.load(Relaxed);
            local.set(&open.set.object.block, at)?;
            local.set(&open.set.object.ctime, sys::now())?;
            heap.free(old)?;
            local.commit();
            drop(heap);
            open.set.poke(local, open.offset, wakes)
        })
    }

    /// `semctl(IPC_STAT)`.
    pub fn sem_status(&self, id: i32) -> Result<SemStatus> {
        self.with_set(id, READ, |_, open, _| Ok(self.status_told(open.set, Some(id))))
    }

    /// `semctl(SEM_STAT)`, with `any` `SEM_STAT_ANY`: of what is in a slot. Its id, too.
    pub fn sem_slot_status(&self, slot: i32, any: bool) -> Result<(i32, SemStatus)> {
        let (_call, local) = self.begin()?;
        let _section = local.enter();
        let (set, _, _held) = local.find_slot::<Set>(slot)?;
        if !any {
            set.object.permits(READ)?;
        }
        let status = self.status_told(set, None);
        Ok((status.status.id, status))
    }

    /// `id`: what the program calls the set. `None`: what the set says, which the program is told.
    fn status_told(&self, set: &Set, id: Option<i32>) -> SemStatus {
        let status = SemStatus {
            status: Status::of(&set.object),
            otime: set.otime.load(Relaxed),
            count: set.count.load(Relaxed),
        };
        let id = id.unwrap_or(status.status.id);
        self.space.told.tell(Kind::Sem, id, status.count);
        status
    }

    /// `semctl(IPC_SET)`.
    pub fn set_sem_owner(&self, id: i32, owner: Owner) -> Result<()> {
        self.set_owner::<Set>(id, owner, |_, _| Ok(()))
    }

    /// `semctl(IPC_RMID)`.
    pub fn remove_sem(&self, id: i32) -> Result<()> {
        self.remove::<Set>(id)
    }

    /// What `semctl(IPC_INFO)` and `SEM_INFO` tell.
    pub fn sem_info(&self) -> Result<SemInfo> {
        let (_call, local) = self.begin()?;
        ids::complete::<Set>(local)?;
        let ids = local.ids(Kind::Sem);
        Ok(SemInfo {
            sets: ids.used.load(Relaxed),
            semaphores: ids.total.load(Relaxed),
            highest: ids.high.load(Relaxed).saturating_sub(1) as i32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::DEAD;
    use crate::queue::tests::{poked, tell, with_waiters};
    use std::thread;

    /// The remover has marked the set and died as it told the waiter, or took it out of the queue.
    #[test]
    fn waiters_end_a_removal_that_a_death_interrupted() {
        for told in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let n = Namespace::open(directory.path()).unwrap();
            let id = n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
            let messages = n.msgget(libc::IPC_PRIVATE, 0o600).unwrap();
            let down = SemOp { sem_num: 0, sem_op: -1, sem_flg: 0 };
            let waiter = thread::spawn(move || {
                let error = n.semop(id, &[down], None);
                (error, n.begin().unwrap().1.thread.waits_on.load(Relaxed))
            });
            let queue = |set: &'static Set| &set.queue;
            with_waiters(&n, id, queue, 1, |local, set, _| {
                let waiter = set.queue.first.load(Relaxed);
                local.set(&set.object.state, DEAD).unwrap();
                local.set(&local.ids(Kind::Sem).removing, 1).unwrap();
                if told {
                    tell(local.space.thread(waiter).unwrap());
                } else {
                    local.dequeue(&set.queue, waiter).unwrap();
                }
                local.commit();
            });
            if !told {
                assert_eq!(n.sem_info().unwrap().sets, 0);
                let (_call, local) = n.begin().unwrap();
                crate::grace::reclaim_all(local).unwrap();
            }
            // Into memory that the set had, unless it is still there.
            let message = [255; 200];
            (0..2).for_each(|_| n.msgsnd(messages, 1, &message, 0).unwrap());
            assert_eq!(waiter.join().unwrap(), (Err(Errno(libc::EIDRM)), 0));
            for _ in 0..2 {
                let mut found = [0; 200];
                assert_eq!(n.msgrcv(messages, &mut found, 0, libc::IPC_NOWAIT), Ok((1, 200)));
                assert_eq!(found, message);
            }
        }
    }

    /// Its values would go over what lies behind the program's array.
    #[test]
    fn a_set_that_has_grown_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.semget(5, 1, libc::IPC_CREAT | 0o600).unwrap();
        let queue = |set: &'static Set| &set.queue;
        with_waiters(&n, id, queue, 0, |_, set, _| set.count.store(3, Relaxed));
        assert_eq!(n.sem_values(id), Err(CORRUPT));
        assert_eq!(n.sem_count(id), Err(CORRUPT));
        assert_eq!(n.semget(5, 0, 0), Err(CORRUPT));
        assert_eq!(n.sem_status(id).map(|status| status.count), Ok(3));
        assert_eq!(n.sem_values(id).map(|values| values.len()), Ok(3));
    }

    #[test]
    fn who_wants_less_is_poked_behind_who_wants_more() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
        let wait = |op| move || n.semop(id, &[SemOp { sem_num: 0, sem_op: op, sem_flg: 0 }], None);
        let more = thread::spawn(wait(-2));
        let queue = |set: &'static Set| &set.queue;
        with_waiters(&n, id, queue, 1, |_, _, _| ());
        let less = thread::spawn(wait(-1));
        with_waiters(&n, id, queue, 2, |local, set, offset| {
            set.semaphores(local).unwrap()[0].set(local, 1, local.pid).unwrap();
            local.commit();
            let mut wakes = Wakes::new();
            set.poke(local, offset, &mut wakes).unwrap();
            assert_eq!(poked(local, &set.queue, offset), [false, true]);
            wakes.wake();
        });
        assert_eq!(less.join().unwrap(), Ok(()));
        n.remove_sem(id).unwrap();
        assert_eq!(more.join().unwrap(), Err(Errno(libc::EIDRM)));
    }

    #[test]
    fn who_starves_is_left_the_units_that_it_can_take_and_no_others() {
        let op = |sem_num, sem_op| SemOp { sem_num, sem_op, sem_flg: 0 };
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        // What an operation finds, done while the first waiter starves and others do not look; and
        // who of two waiters is poked after that.
        let beside = |wanted: &[SemOp], values: [u16; 2], now: [i32; 2], ops: &[SemOp]| {
            let id = n.semget(libc::IPC_PRIVATE, 2, 0o600).unwrap();
            n.set_sem_values(id, &values).unwrap();
            let queue = |set: &'static Set| &set.queue;
            let waiters = [1, 2].map(|count| {
                let wanted = wanted.to_vec();
                let waiter = thread::spawn(move || n.semop(id, &wanted, None));
                with_waiters(&n, id, queue, count, |_, _, _| ());
                waiter
            });
            let (mut result, mut who) = (Ok(None), Vec::new());
            with_waiters(&n, id, queue, 2, |local, set, offset| {
                set.starving.store(set.queue.last.load(Relaxed), Relaxed);
                for (semaphore, value) in set.semaphores(local).unwrap().iter().zip(now) {
                    semaphore.set(local, value, local.pid).unwrap();
                }
                local.commit();
                let mut wakes = Wakes::new();
                result = set.attempt(local, offset, ops, &mut wakes);
                set.poke(local, offset, &mut wakes).unwrap();
                who = poked(local, &set.queue, offset);
                wakes.wake();
            });
            n.remove_sem(id).unwrap();
            waiters.into_iter().for_each(|waiter| _ = waiter.join().unwrap());
            (result, who)
        };
        let nobody = vec![false, false];
        // Another semaphore: the one who starves may wait for its holder to get this one, too.
        assert_eq!(beside(&[op(0, -1)], [0, 1], [0, 1], &[op(1, -1)]), (Ok(None), nobody.clone()));
        // Readers and a writer, for whom there is too little: a reader that goes on may give back.
        assert_eq!(beside(&[op(0, -3)], [2, 0], [2, 0], &[op(0, -1)]), (Ok(None), nobody.clone()));
        // What earlier parts of the operation itself have added.
        assert_eq!(
            beside(&[op(0, -1)], [0, 0], [0, 0], &[op(0, 1), op(0, -1)]),
            (Ok(None), nobody)
        );
        let last = vec![false, true];
        let blocked = Ok(Some(Blocked { num: 0, sum: -1, zero: false }));
        assert_eq!(beside(&[op(0, -1)], [0, 0], [1, 0], &[op(0, -1)]), (blocked, last.clone()));
        // Enough for both.
        assert_eq!(beside(&[op(0, -1)], [0, 0], [2, 0], &[op(0, -1)]), (Ok(None), last.clone()));
        let hurried = SemOp { sem_flg: IPC_NOWAIT, ..op(0, -1) };
        assert_eq!(beside(&[op(0, -1)], [0, 0], [1, 0], &[hurried]).0, Ok(None));
        // A mutex that is free at zero.
        let locks = [op(0, 0), op(0, 1)];
        let blocked = |sum, zero| Ok(Some(Blocked { num: 0, sum, zero }));
        assert_eq!(beside(&locks, [1, 0], [0, 0], &locks), (blocked(0, true), last.clone()));
        assert_eq!(beside(&locks, [1, 0], [0, 0], &locks[..1]), (Ok(None), last.clone()));
        assert_eq!(beside(&locks, [1, 0], [0, 0], &locks[1..]).0, Ok(None));
        let hurried = [SemOp { sem_flg: IPC_NOWAIT, ..locks[0] }, locks[1]];
        assert_eq!(beside(&locks, [1, 0], [0, 0], &hurried).0, Ok(None));
        let gives_back = [op(0, 0), op(0, 1), op(0, -1)];
        assert_eq!(beside(&locks, [1, 0], [0, 0], &gives_back).0, Ok(None));
        // One that waits for a value.
        let drains = [op(0, -2), op(0, 0)];
        assert_eq!(beside(&drains, [3, 0], [2, 0], &[op(0, -1)]), (blocked(-1, false), last));
    }

    #[test]
    fn who_cannot_go_on_leaves_the_starving_ones_place_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let n = Namespace::open(directory.path()).unwrap();
        let id = n.semget(libc::IPC_PRIVATE, 2, 0o600).unwrap();
        let down = SemOp { sem_num: 0, sem_op: -2, sem_flg: 0 };
        let waiter = thread::spawn(move || n.semop(id, &[down], None));
        with_waiters(
            &n,
            id,
            |set: &'static Set| &set.queue,
            1,
            |local, set, _| {
                let part = |num, sum| Blocked { num, sum, zero: false };
                assert!(set.may_starve(local, part(0, -2), false));
                set.starving.store(set.queue.first.load(Relaxed), Relaxed);
                assert!(set.may_starve(local, part(1, -1), true));
                assert!(!set.may_starve(local, part(1, -1), false));
                // Less of the same semaphore may come when the other one's part does not.
                assert!(set.may_starve(local, part(0, -1), true));
                assert!(!set.may_starve(local, part(0, -2), true));
                set.semaphores(local).unwrap()[0].set(local, 2, local.pid).unwrap();
                local.commit();
                assert!(!set.may_starve(local, part(1, -1), true));
            },
        );
        n.remove_sem(id).unwrap();
        let _ = waiter.join().unwrap();
    }

    /// Earlier parts of an operation change what its blocked part finds.
    #[test]
    fn who_waits_with_several_parts_on_one_semaphore_is_poked() {
        let op = |sem_op| SemOp { sem_num: 0, sem_op, sem_flg: 0 };
        let poked_by = |first, ops: [SemOp; 2], change| {
            let directory = tempfile::tempdir().unwrap();
            let n = Namespace::open(directory.path()).unwrap();
            let id = n.semget(libc::IPC_PRIVATE, 1, 0o600).unwrap();
            n.set_sem_value(id, 0, first).unwrap();
            let waiter = thread::spawn(move || n.semop(id, &ops, None));
            let mut found = Vec::new();
            with_waiters(
                &n,
                id,
                |set: &'static Set| &set.queue,
                1,
                |local, set, offset| {
                    let mut wakes = Wakes::new();
                    assert_eq!(set.attempt(local, offset, &[op(change)], &mut wakes), Ok(None));
                    found = poked(local, &set.queue, offset);
                    wakes.wake();
                },
            );
            n.remove_sem(id).unwrap();
            let _ = waiter.join().unwrap();
            found
        };
        assert_eq!(poked_by(0, [op(1), op(-2)], 1), [true]);
        assert_eq!(poked_by(2, [op(-1), op(0)], -1), [true]);
        assert_eq!(poked_by(3, [op(-1), op(0)], -1), [false]);
        // Never possible.
        assert_eq!(poked_by(0, [op(1), op(0)], 1), [false]);
    }
}
