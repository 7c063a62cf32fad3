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

mod attempt;
mod blocked;
mod control;
mod starve;
mod undo;
mod wait;
mod wake;

use crate::error::{CORRUPT, Result};
use crate::object::{Is, Object};
use crate::peers::Local;
use crate::queue::Queue;
use crate::space::layout::{Kind, Shared};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

pub use control::{SemInfo, SemStatus};

pub use libc::sembuf as SemOp;

/// The greatest value of a semaphore (SEMVMX), and of an adjustment (SEMAEM).
pub const MOST: i32 = 32767;

const SEM_UNDO: i16 = libc::SEM_UNDO as i16;
const IPC_NOWAIT: i16 = libc::IPC_NOWAIT as i16;

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

// SAFETY: atomics only.
unsafe impl Shared for Set {}
// SAFETY: as above.
unsafe impl Shared for Semaphore {}

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
}

#[cfg(test)]
mod tests {
    use super::blocked::Blocked;
    use super::*;
    use crate::error::Errno;
    use crate::namespace::Namespace;
    use crate::object::DEAD;
    use crate::queue::Wakes;
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
        // The result of an operation, done while the first waiter starves and others do not look;
        // and who of two waiters is poked after that.
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
        // Units that earlier parts of the operation itself have added.
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
        // A waiter for a value.
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
