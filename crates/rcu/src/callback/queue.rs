// SPDX-License-Identifier: MIT OR Apache-2.0
//! One CPU's queue: the list, and the batch that waits for a grace period or runs.
//!
//! A batch is always in the queue itself, never on a thread's stack, so that the child of a fork finds it; and any thread may do the next
//! step of it: the worker, or a registering thread that helps. A step is
//!
//! 1. under the queue's lock: if nothing waits, let what has gathered wait for the cookie of a grace period;
//! 2. without the lock: wait for that grace period, or lead it;
//! 3. under the lock, if the waiting batch's grace period is over: look into the slots, keep what is protected, run the rest.
//!
//! The lock is held while callbacks run. A fork waits for it, and the thread that runs them lets it pass between two
//! callbacks.

use super::list::{List, Load};
use super::{Head, LEAF, PHASE};
use crate::domain::core::Core;
use crate::grace::Cookie;
use crate::slots::{Protected, Slots};
use crate::sync::{Bell, Lock};
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
    /// Of callbacks that have run, or are being run, and are still in the accounts.
    unsettled: [Load; 2],
}

impl Batch {
    const EMPTY: Batch = Batch {
        waiting: null_mut(),
        cookie: Cookie(0),
        ready: null_mut(),
        held: null_mut(),
        unsettled: [Load::NONE; 2],
    };
}

#[repr(align(128))]
pub(crate) struct Queue {
    pub(crate) list: List,
    /// The worker sleeps on it.
    pub(crate) bell: Bell,
    pub(crate) started: AtomicBool,
    pub(crate) lock: Lock,
    /// The fork that is being prepared could not have the lock.
    pub(crate) missed: AtomicBool,
    /// Of `Batch::held`: waits for guards, which no grace period helps with. Written under the lock.
    held: AtomicU64,
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
    pub(crate) fn new() -> Queue {
        Queue {
            list: List::new(),
            bell: Bell::new(),
            started: AtomicBool::new(false),
            lock: Lock::new(),
            missed: AtomicBool::new(false),
            held: AtomicU64::new(0),
            batch: UnsafeCell::new(Batch::EMPTY),
        }
    }

    pub(crate) fn load(&self) -> Load {
        self.list.account(0).add(self.list.account(1))
    }

    /// What waits for a grace period or for being run, and not for a guard.
    pub(crate) fn load_unheld(&self) -> Load {
        self.load().less(Load::from_bits(self.held.load(Ordering::Relaxed)))
    }

    pub(crate) fn wake(&self) {
        self.bell.ring();
    }

    /// The next step. See the module's text.
    pub(crate) fn step(&self, core: &Core, who: Who) -> Step {
        if !self.lock_for(who) {
            return Step::Stuck;
        }
        // SAFETY: under the lock.
        let batch = unsafe { &mut *self.batch.get() };
        if batch.waiting.is_null() {
            batch.waiting = self.list.take();
            // After the take: the unlinkings of all that was taken come before the cookie.
            batch.cookie = core.grace.cookie();
        }
        let (waiting, cookie) = (!batch.waiting.is_null(), batch.cookie);
        let idle = !waiting && batch.ready.is_null();
        let held = !batch.held.is_null();
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
        batch.held = join(batch.held, &mut batch.ready);
        self.held.store(0, Ordering::Relaxed);
        #[cfg(reprieve_fault)]
        let protected = early.unwrap_or_else(|| core.scan());
        #[cfg(not(reprieve_fault))]
        let protected = core.scan();
        let ran = self.run(core, protected, who);
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
                if head.node != 0 && protected.contains(head.node) {
                    head.next = (*self.batch.get()).held;
                    (*self.batch.get()).held = head;
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
            self.list.subtract(phase, std::mem::take(load));
        }
        core.notice_progress();
    }

    /// In the child of a fork: there is no worker, and the accounts are what is really there (a thread of the parent may have been
    /// between accounting and pushing). What was waiting waits for a new grace period. If this thread is running this queue's callbacks
    /// it keeps the lock and its batch. If the lock could not be had before the fork, the batch is in an unknown state and is left alone.
    pub(crate) fn after_fork(&self, core: &Core) {
        self.started.store(false, Ordering::Relaxed);
        self.bell.after_fork();
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
            self.held.store(0, Ordering::Relaxed);
        }
        batch.cookie = core.grace.cookie();
        let mut loads = batch.unsettled;
        for chain in [self.list.peek(), batch.waiting, batch.ready, batch.held] {
            let mut next = chain;
            // SAFETY: the chains are consistent, and nobody else's.
            while let Some(head) = unsafe { next.as_ref() } {
                let phase = (head.flags & PHASE) as usize;
                loads[phase] = loads[phase].add(Load::one(head.units));
                next = head.next;
            }
        }
        self.list.set_accounts(loads);
    }
}

/// Moves `chain` in front of `to`; returns the empty chain.
fn join(chain: *mut Head, to: &mut *mut Head) -> *mut Head {
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
