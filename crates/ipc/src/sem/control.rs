// SPDX-License-Identifier: MIT OR Apache-2.0
//! `semget` and `semctl`.

use super::blocked::Blocked;
use super::{MOST, Semaphore, Set};
use crate::error::{Errno, Result};
use crate::ids::{self, Request};
use crate::namespace::{Namespace, Owner, Status};
use crate::peers::Local;
use crate::permission::{READ, WRITE};
use crate::queue::Wakes;
use crate::space::layout::Kind;
use crate::sys;
use std::sync::atomic::Ordering::*;

/// The answer of `semctl(IPC_INFO)` and `SEM_INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemInfo {
    pub sets: u64,
    pub semaphores: u64,
    /// The highest slot in use.
    pub highest: i32,
}

/// The answer of `semctl(IPC_STAT)`.
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
        let size = |set: &Set| set.count.load(Relaxed);
        ids::get_sized::<Set>(local, &request, count, size, |local, heap, set, _| {
            if count == 0 {
                return Err(Errno(libc::EINVAL));
            }
            let bytes = count * size_of::<Semaphore>() as u64;
            let block = heap.take(bytes)?;
            ids::zero(local, block, bytes)?;
            local.set(&set.object.block, block)?;
            set.count.store(count, Relaxed);
            Ok(())
        })
    }
}

/// A set that is locked for a `semctl` command, with the dead's adjustments applied.
struct Open {
    set: &'static Set,
    offset: u64,
    semaphores: &'static [Semaphore],
}

impl Open {
    fn semaphore(&self, num: i32) -> Result<&'static Semaphore> {
        let semaphore = usize::try_from(num).ok().and_then(|num| self.semaphores.get(num));
        semaphore.ok_or(Errno(libc::EINVAL))
    }
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
        let mut wakes = Wakes::new();
        let _section = local.enter();
        let (set, offset, _held) = local.find_locked::<Set>(id)?;
        set.object.permits(wanted)?;
        set.settle(local, offset, 0, &mut wakes)?;
        let semaphores = set.semaphores(local)?;
        f(local, &Open { set, offset, semaphores }, &mut wakes)
    }

    fn with_semaphore<R>(
        &self,
        id: i32,
        num: i32,
        f: impl FnOnce(&Local, &Open, &Semaphore) -> Result<R>,
    ) -> Result<R> {
        self.with_set(id, READ, |local, open, _| f(local, open, open.semaphore(num)?))
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
        // The number is looked at before the permission.
        self.with_set(id, 0, |local, open, wakes| {
            let semaphore = open.semaphore(num)?;
            open.set.object.permits(WRITE)?;
            local.set(&semaphore.epoch, semaphore.epoch.load(Relaxed).wrapping_add(1))?;
            semaphore.set(local, value, local.pid)?;
            local.set(&open.set.object.ctime, sys::now())?;
            local.commit();
            open.set.poke(local, open.offset, wakes)
        })
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

    /// The answer of `semctl(IPC_INFO)` and `SEM_INFO`.
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
