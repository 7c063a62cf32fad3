// SPDX-License-Identifier: MIT OR Apache-2.0
//! One CPU's queue: the batch that waits for a grace period or runs, taken from the CPU's lists (`intake.rs`).
//!
//! A batch is always in the queue itself, never on a thread's stack, so that the child of a fork finds it; and any thread may do the next
//! step of it: the worker, or, where there is none, a registering thread or a caller of `barrier`. A step is
//!
//! 1. under the queue's lock: if nothing waits, let what is on the lists wait for the cookie of a grace period;
//! 2. without the lock: wait for that grace period, or lead it;
//! 3. under the lock, if the waiting batch's grace period is over: look into the slots, keep what is protected, run the rest.
//!
//! The lock is held while callbacks run. A fork waits for it, and the thread that runs them lets it pass between two
//! callbacks.

use super::alarm::Alarm;
use super::intake::{Lane, add_up};
use super::list::{Chain, List, fetch};
use super::load::Load;
use super::{Head, LEAF, PHASE};
use crate::domain::core::Core;
use crate::grace::Cookie;
use crate::slots::{Protected, Slots};
use crate::sync::Lock;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Chains of heads that have been taken from the list. Under the queue's lock.
struct Batch {
    /// Waits for `cookie`.
    waiting: *mut Head,
    cookie: Cookie,
    /// The grace period is over: to be run.
    ready: *mut Head,
    /// The grace period is over, but when last looked at a slot held the node.
    held: *mut Head,
    /// What of `Queue::held` is in `held`.
    held_load: Load,
    /// Of callbacks that have run, or are being run, and are still in the accounts.
    unsettled: [Load; 2],
}

impl Batch {
    const EMPTY: Batch = Batch {
        waiting: null_mut(),
        cookie: Cookie(0),
        ready: null_mut(),
        held: null_mut(),
        held_load: Load::NONE,
        unsettled: [Load::NONE; 2],
    };
}

#[repr(align(128))]
pub(crate) struct Queue {
    index: usize,
    pub(crate) alarm: Alarm,
    pub(crate) started: AtomicBool,
    pub(crate) lock: Lock,
    /// The fork that is being prepared could not have the lock.
    pub(crate) missed: AtomicBool,
    /// There is a batch.
    loaded: AtomicBool,
    /// Of `Batch::held` and `aside`: waits for guards, which no grace period helps with.
    held: AtomicU64,
    /// Callbacks that wait for guards, from threads that helped.
    aside: List,
    batch: UnsafeCell<Batch>,
}

// SAFETY: the batch is touched under the lock only; heads were handed over to whoever holds it.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

/// Who does a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Worker,
    /// A registering thread: until the deadline, and only callbacks that are mere frees.
    Helper(Instant),
}

/// Whether there is more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Nothing waits.
    Idle,
    /// Only protected nodes wait.
    Held,
    /// Something was run, or may be run by the next step.
    Progress,
    /// The grace period did not end in time, or others have the queue.
    Stuck,
}

impl Queue {
    pub(crate) fn new(index: usize) -> Queue {
        Queue {
            index,
            alarm: Alarm::new(),
            started: AtomicBool::new(false),
            lock: Lock::new(),
            missed: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            held: AtomicU64::new(0),
            aside: List::new(),
            batch: UnsafeCell::new(Batch::EMPTY),
        }
    }

    /// What waits for a guard.
    pub(crate) fn held(&self) -> Load {
        Load::from_bits(self.held.load(Ordering::Relaxed))
    }

    /// The worker will look after callbacks whose grace period is over and that were seen in a slot then.
    ///
    /// # Safety
    /// The chain, not empty, is the caller's alone, and in the account.
    pub(crate) unsafe fn set_aside(&self, chain: Chain) {
        let mut loads = [Load::NONE; 2];
        // SAFETY: the caller's promise.
        unsafe { add_up(chain.first, &mut loads) };
        self.held.fetch_add(loads[0].add(loads[1]).bits(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.aside.push(chain.first, chain.last) };
        self.alarm.work();
    }

    /// Whether there is work that the worker has not taken.
    pub(crate) fn any(&self, core: &Core) -> bool {
        core.intake.any(self.index) || !self.aside.is_empty()
    }

    /// Whether there is a batch that waits for anything.
    pub(crate) fn loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    fn note_load(&self, batch: &Batch) {
        let chains = [batch.waiting, batch.ready, batch.held];
        self.loaded.store(chains.iter().any(|c| !c.is_null()), Ordering::Relaxed);
    }

    fn lane<'a>(&self, core: &'a Core) -> &'a Lane {
        core.intake.lane(self.index)
    }

    /// The next step. See the module's text.
    pub(crate) fn step(&self, core: &Core, who: Who) -> Step {
        if !self.lock_for(who) {
            return Step::Stuck;
        }
        // SAFETY: under the lock.
        let batch = unsafe { &mut *self.batch.get() };
        if batch.waiting.is_null() {
            batch.waiting = core.intake.take(self.index, false);
            join(core.intake.take(self.index, true), &mut batch.waiting);
            // After the take: the unlinkings of all that was taken come before the cookie.
            batch.cookie = core.grace.cookie();
        }
        let (waiting, cookie) = (!batch.waiting.is_null(), batch.cookie);
        let idle = !waiting && batch.ready.is_null();
        self.note_load(batch);
        let held = !batch.held.is_null() || !self.aside.is_empty();
        self.lock.unlock();
        if idle && !held {
            return Step::Idle;
        }
        #[cfg(reprieve_fault)]
        let early = crate::fault::is(crate::fault::Fault::ScanFirst).then(|| core.scan());
        let deadline = match who {
            Who::Worker => None,
            Who::Helper(deadline) => Some(deadline),
        };
        if waiting && !core.run_until(cookie, deadline) || !self.lock_for(who) {
            return Step::Stuck;
        }
        // SAFETY: under the lock.
        let batch = unsafe { &mut *self.batch.get() };
        // Somebody else may have run the batch and begun another.
        if !batch.waiting.is_null() && core.grace.done(batch.cookie) {
            batch.waiting = join(batch.waiting, &mut batch.ready);
        }
        let (aside, mut loads) = (self.aside.take(), [Load::NONE; 2]);
        // SAFETY: ours since it was taken.
        unsafe { add_up(aside, &mut loads) };
        join(aside, &mut batch.ready);
        batch.held = join(batch.held, &mut batch.ready);
        let looked_at = std::mem::take(&mut batch.held_load).add(loads[0]).add(loads[1]);
        self.held.fetch_sub(looked_at.bits(), Ordering::Relaxed);
        #[cfg(reprieve_fault)]
        let protected = early.unwrap_or_else(|| core.scan());
        #[cfg(not(reprieve_fault))]
        let protected = core.scan();
        let ran = self.run(core, protected, who);
        // SAFETY: under the lock.
        self.note_load(unsafe { &*self.batch.get() });
        self.lock.unlock();
        match ran {
            0 if idle => Step::Held,
            0 => Step::Stuck,
            _ => Step::Progress,
        }
    }

    /// Whether a callback, of account `phase` or of either, waits for a guard of the thread whose slots these are. May miss one while a step
    /// is being done.
    pub(crate) fn waits_for(&self, slots: &Slots, phase: Option<usize>) -> bool {
        if self.held.load(Ordering::Relaxed) == 0 || !self.lock.try_lock() {
            return false;
        }
        // SAFETY: under the lock, which the chain's heads belong to.
        let held =
            std::iter::successors(unsafe { (*self.batch.get()).held.as_ref() }, |head| unsafe {
                head.next.as_ref()
            });
        let ours = |head: &Head| {
            phase.is_none_or(|p| p == (head.flags & PHASE) as usize) && slots.hold(head.node)
        };
        let found = held.into_iter().any(ours);
        self.lock.unlock();
        found
    }

    fn lock_for(&self, who: Who) -> bool {
        match who {
            Who::Worker => {
                self.lock.lock();
                true
            }
            Who::Helper(_) => self.lock.try_lock(),
        }
    }

    /// Runs the ready callbacks under the lock; returns how many. Those whose node is protected go to `held`.
    fn run(&self, core: &Core, mut protected: Protected, who: Who) -> u64 {
        /// Settle accounts now and then: others look at them.
        const OFTEN: u64 = 64;
        let thread = crate::thread::this();
        let mut kept = null_mut();
        let mut ran = 0;
        // SAFETY: under the lock, which is given up and taken again in between, so the batch is looked up afresh each time. A ready
        // head is nobody else's; after its function was called it is not touched.
        unsafe {
            while let Some(head) = (*self.batch.get()).ready.as_mut() {
                (*self.batch.get()).ready = head.next;
                fetch(head.next);
                if head.node != 0 && protected.contains(head.node) {
                    head.next = (*self.batch.get()).held;
                    let batch = &mut *self.batch.get();
                    batch.held = head;
                    batch.held_load = batch.held_load.add(Load::one(head.units));
                    self.held.fetch_add(Load::one(head.units).bits(), Ordering::Relaxed);
                    continue;
                }
                if who != Who::Worker && head.flags & LEAF == 0 {
                    head.next = kept;
                    kept = head;
                    continue;
                }
                let unsettled = &mut (*self.batch.get()).unsettled[(head.flags & PHASE) as usize];
                *unsettled = unsettled.add(Load::one(head.units));
                if let Some(function) = head.function {
                    (*thread).running = std::ptr::from_ref(self) as usize;
                    function(head);
                    (*thread).running = 0;
                }
                ran += 1;
                if ran % OFTEN == 0 {
                    self.settle(core);
                }
                if crate::fork::waiting() && who == Who::Worker {
                    crate::fork::let_pass(&self.lock);
                    // Whoever had the lock meanwhile may have made another batch ready, whose grace period ended after our look.
                    protected = core.scan();
                }
            }
            join(kept, &mut (*self.batch.get()).ready);
            self.settle(core);
        }
        ran
    }

    /// # Safety
    /// Under the lock.
    unsafe fn settle(&self, core: &Core) {
        // SAFETY: the caller's promise.
        let unsettled = unsafe { &mut (*self.batch.get()).unsettled };
        for (phase, load) in unsettled.iter_mut().enumerate() {
            core.callbacks.run.fetch_add(load.callbacks(), Ordering::Relaxed);
            self.lane(core).account.finish(phase, std::mem::take(load));
        }
        core.notice_progress();
    }

    /// In the child of a fork: there is no worker, and the accounts are what is really there (a thread of the parent may have been
    /// between accounting and pushing). What was waiting waits for a new grace period. If this thread is running this queue's callbacks
    /// it keeps the lock and its batch. If the lock could not be had before the fork, the batch is in an unknown state and is left alone. `recount`: no
    /// if this thread has callbacks in hand, which are in the account (see `fork.rs`).
    pub(crate) fn after_fork(&self, core: &Core, recount: bool) {
        self.started.store(false, Ordering::Relaxed);
        self.alarm.after_fork();
        // SAFETY: the only thread.
        let batch = unsafe { &mut *self.batch.get() };
        if !crate::thread::running(self) {
            self.lock.reset();
            batch.unsettled = Default::default();
            if self.missed.swap(false, Ordering::Relaxed) {
                *batch = Batch::EMPTY;
            }
            batch.ready = join(batch.ready, &mut batch.waiting);
            batch.held = join(batch.held, &mut batch.waiting);
            batch.held_load = Load::NONE;
        }
        join(self.aside.take(), &mut batch.waiting);
        self.held.store(batch.held_load.bits(), Ordering::Relaxed);
        batch.cookie = core.grace.cookie();
        self.note_load(batch);
        if recount {
            // SAFETY: the only thread.
            self.lane(core).account.set(unsafe { self.count(core) });
        }
    }

    /// What is on the lists and in the batch, by phase.
    ///
    /// # Safety
    /// Under the lock.
    pub(super) unsafe fn count(&self, core: &Core) -> [Load; 2] {
        // SAFETY: the caller's promise.
        let batch = unsafe { &*self.batch.get() };
        let mut loads = batch.unsettled;
        let listed = core.intake.listed(self.index);
        loads.iter_mut().zip(listed).for_each(|(load, l)| *load = load.add(l));
        for chain in [batch.waiting, batch.ready, batch.held] {
            // SAFETY: the chains are consistent, and nobody else's.
            unsafe { add_up(chain, &mut loads) };
        }
        let aside = self.aside.take();
        if !aside.is_null() {
            // SAFETY: ours since it was taken.
            unsafe {
                add_up(aside, &mut loads);
                let aside = Chain::of(aside);
                self.aside.push(aside.first, aside.last);
            }
        }
        loads
    }
}

/// Moves `chain` in front of `to`; returns the empty chain.
fn join(chain: *mut Head, to: &mut *mut Head) -> *mut Head {
    if to.is_null() {
        // No walk along what may be cold memory.
        *to = chain;
        return null_mut();
    }
    let mut last = chain;
    // SAFETY: both chains belong to the caller.
    unsafe {
        while let Some(head) = last.as_mut() {
            if head.next.is_null() {
                head.next = *to;
                *to = chain;
                break;
            }
            last = head.next;
        }
    }
    null_mut()
}
