// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU's queue: the batch that waits for a grace period or runs, taken from the CPU's lists
//! (`per_cpu_lists.rs`).
//!
//! A batch is always in the queue itself, never on a thread's stack, so that the child of a fork
//! finds it. Any thread may do its next step: the worker, or, where there is none, a registering
//! thread or a caller of `barrier`. A step is
//!
//! 1. under the queue's lock: if no batch waits, take the callbacks from the lists, and a cookie
//!    for them;
//! 2. without the lock: wait for that grace period, or lead it;
//! 3. under the lock, if the waiting batch's grace period is over: look into the slots, keep the
//!    callbacks whose nodes are protected, run the others.
//!
//! The lock is held while callbacks run. A fork waits for it, and the thread that runs them lets it
//! pass between two callbacks.

use super::per_cpu_lists::{GUARDED, Lane, Sums, add_up, sum_of};
use super::reclaimer::Reclaimer;
use super::worker_wait::WorkerWait;
use crate::grace::sequence::GpSeq;
use crate::platform::Instant;
use crate::platform::collect::try_collect;
use crate::platform::fork;
use crate::platform::lock::Lock;
use crate::thread::head::{self, HELD, Head, LEAF};
use crate::thread::list::{Chain, List, fetch};
use crate::thread::load::Load;
use crate::thread::pool::POOL;
use crate::thread::protected::ProtectedNodes;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Chains of heads that have been taken from the list. Under the queue's lock.
struct Batch {
    /// Callbacks that wait for `cookie`.
    waiting: *mut Head,
    cookie: GpSeq,
    /// Callbacks whose grace period is over: they run next.
    ready: *mut Head,
    /// Callbacks whose grace period is over, but whose node was in a slot at the last look.
    held: *mut Head,
    /// The load of callbacks that have run, or run now, and are still counted.
    unsettled: Sums,
}

impl Batch {
    const EMPTY: Batch = Batch {
        waiting: null_mut(),
        cookie: GpSeq(0),
        ready: null_mut(),
        held: null_mut(),
        unsettled: [Load::NONE; 3],
    };
}

#[repr(align(128))]
pub(crate) struct Queue {
    index: usize,
    pub(crate) worker: WorkerWait,
    pub(crate) started: AtomicBool,
    pub(crate) lock: Lock,
    /// The fork that is being prepared could not take the lock.
    pub(crate) missed: AtomicBool,
    /// The batch is not empty.
    loaded: AtomicBool,
    /// The load of callbacks that wait for guards, not for a grace period ([`HELD`]). Written under
    /// the lock.
    held: AtomicU64,
    /// Callbacks that wait for guards, from threads that helped.
    aside: List,
    batch: UnsafeCell<Batch>,
}

// SAFETY: the batch is touched under the lock only; heads were handed over to whoever holds it.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

/// The thread that does a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Worker,
    /// A thread that waits for the callbacks, in place of a worker.
    Barrier,
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
    /// Callbacks have run, or the next step may run some.
    Progress,
    /// The grace period did not end in time, or another thread has the queue.
    Stuck,
}

impl Queue {
    pub(crate) fn new(index: usize) -> Queue {
        Queue {
            index,
            worker: WorkerWait::new(),
            started: AtomicBool::new(false),
            lock: Lock::new(),
            missed: AtomicBool::new(false),
            loaded: AtomicBool::new(false),
            held: AtomicU64::new(0),
            aside: List::new(),
            batch: UnsafeCell::new(Batch::EMPTY),
        }
    }

    /// The callbacks that wait for guards. Acquires what those have done that did.
    pub(crate) fn held(&self) -> Load {
        Load::from_bits(self.held.load(Ordering::Acquire))
    }

    /// A look has found the node of this callback in a slot. Under the lock.
    fn hold(&self, reclaimer: &Reclaimer, head: &mut Head) {
        if head.flags & HELD == 0 {
            let (sum, load) = (sum_of(head), Load::one(head.units));
            head.flags |= HELD;
            self.held.fetch_add(load.bits(), Ordering::Relaxed);
            self.lane(reclaimer).pending.finish(sum, load);
        }
    }

    /// Hands callbacks to the worker whose grace period is over, but whose nodes are in slots. The
    /// worker counts them as such: a barrier must not miss those that are in nobody's chain yet.
    ///
    /// # Safety
    /// The chain, not empty, is the caller's alone, and in the pending count.
    pub(crate) unsafe fn set_aside(&self, chain: Chain) {
        // SAFETY: the caller's promise.
        unsafe { self.aside.push(chain.first, chain.last) };
        self.worker.notify();
    }

    /// Whether there is work that the worker has not taken.
    pub(crate) fn any(&self, reclaimer: &Reclaimer) -> bool {
        reclaimer.lists.any(self.index) || !self.aside.is_empty()
    }

    /// Whether there is a batch that waits for anything.
    pub(crate) fn loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Whether there is work and no worker.
    pub(crate) fn lacks_worker(&self, reclaimer: &Reclaimer) -> bool {
        !self.started.load(Ordering::Relaxed) && (self.any(reclaimer) || self.loaded())
    }

    fn note_load(&self, batch: &Batch) {
        let chains = [batch.waiting, batch.ready, batch.held];
        self.loaded.store(chains.iter().any(|c| !c.is_null()), Ordering::Relaxed);
    }

    fn lane<'a>(&self, reclaimer: &'a Reclaimer) -> &'a Lane {
        reclaimer.lists.lane(self.index)
    }

    /// The next step. See the module's text.
    pub(crate) fn step(&self, reclaimer: &Reclaimer, who: Who) -> Step {
        if !self.lock_for(who) {
            return Step::Stuck;
        }
        // SAFETY: under the lock.
        let batch = unsafe { &mut *self.batch.get() };
        if batch.waiting.is_null() {
            batch.waiting = reclaimer.lists.take(self.index, false);
            join(reclaimer.lists.take(self.index, true), &mut batch.waiting);
            // After the take: the unlinkings of all that was taken come before the cookie.
            batch.cookie = reclaimer.grace.cookie();
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
        let early = crate::platform::fault::is(crate::platform::fault::Fault::ScanFirst)
            .then(|| reclaimer.scan());
        let grace = &reclaimer.grace;
        let grace_period = || match who {
            Who::Worker | Who::Barrier => grace.run_until(cookie, None),
            Who::Helper(deadline) => grace.run_until(cookie, Some(deadline)),
        };
        if waiting && !grace_period() || !self.lock_for(who) {
            return Step::Stuck;
        }
        // SAFETY: under the lock.
        let batch = unsafe { &mut *self.batch.get() };
        // Somebody else may have run the batch and begun another.
        if !batch.waiting.is_null() && reclaimer.grace.done(batch.cookie) {
            batch.waiting = join(batch.waiting, &mut batch.ready);
        }
        join(self.aside.take(), &mut batch.ready);
        batch.held = join(batch.held, &mut batch.ready);
        #[cfg(reprieve_fault)]
        let protected = early.unwrap_or_else(|| reclaimer.scan());
        #[cfg(not(reprieve_fault))]
        let protected = reclaimer.scan();
        let ran = self.run(reclaimer, protected, who);
        // SAFETY: under the lock.
        self.note_load(unsafe { &*self.batch.get() });
        self.lock.unlock();
        match ran {
            0 if idle => Step::Held,
            0 => Step::Stuck,
            _ => Step::Progress,
        }
    }

    /// Whether this thread is running callbacks of this queue.
    pub(crate) fn running_here(&self) -> bool {
        crate::thread::running() == std::ptr::from_ref(self) as usize
    }

    fn lock_for(&self, who: Who) -> bool {
        match who {
            Who::Worker | Who::Barrier => {
                self.lock.lock();
                true
            }
            Who::Helper(_) => self.lock.try_lock(),
        }
    }

    /// Runs the ready callbacks under the lock; returns how many. Those whose node is protected go
    /// to `held`.
    fn run(&self, reclaimer: &Reclaimer, mut protected: ProtectedNodes, who: Who) -> u64 {
        /// Update the pending count after so many: other threads look at it.
        const OFTEN: u64 = 64;
        let thread = crate::thread::this();
        let helper = matches!(who, Who::Helper(_));
        let mut kept = null_mut();
        let mut ran = 0;
        // SAFETY: under the lock, which is given up and taken again in between, so the batch is
        // looked up afresh each time. A ready head is nobody else's; after its function was called
        // it is not touched.
        unsafe {
            loop {
                // No reference: the function frees what the head is a part of.
                let head = (*self.batch.get()).ready;
                if head.is_null() {
                    break;
                }
                (*self.batch.get()).ready = (*head).next;
                fetch((*head).next);
                if (*head).node != 0 && protected.contains((*head).node) {
                    self.hold(reclaimer, &mut *head);
                    (*head).next = (*self.batch.get()).held;
                    (*self.batch.get()).held = head;
                    continue;
                }
                if helper && (*head).flags & LEAF == 0 {
                    (*head).next = kept;
                    kept = head;
                    continue;
                }
                let unsettled = &mut (*self.batch.get()).unsettled[sum_of(&*head)];
                *unsettled = unsettled.add(Load::one((*head).units));
                (*thread).running = std::ptr::from_ref(self) as usize;
                head::run(head);
                (*thread).running = 0;
                ran += 1;
                if ran % OFTEN == 0 {
                    self.settle(reclaimer);
                }
                if fork::waiting() && !helper {
                    fork::let_pass(&self.lock);
                    // The thread that had the lock meanwhile may have made another batch ready,
                    // whose grace period ended after our look.
                    protected = reclaimer.scan();
                }
            }
            join(kept, &mut (*self.batch.get()).ready);
            self.settle(reclaimer);
        }
        ran
    }

    /// # Safety
    /// Under the lock.
    unsafe fn settle(&self, reclaimer: &Reclaimer) {
        // SAFETY: the caller's promise.
        let unsettled = std::mem::take(unsafe { &mut (*self.batch.get()).unsettled });
        for (sum, load) in unsettled.into_iter().enumerate() {
            reclaimer.stats.run.fetch_add(load.callbacks(), Ordering::Relaxed);
            if sum == GUARDED {
                // Release: as in `finish`.
                self.held.fetch_sub(load.bits(), Ordering::Release);
            } else {
                self.lane(reclaimer).pending.finish(sum, load);
            }
        }
        reclaimer.notice_progress();
    }

    /// The domain ends: ends the guards in the pool that hold callbacks of this queue.
    pub(crate) fn end_guards(&self) {
        self.lock.lock();
        // SAFETY: under the lock.
        let first = unsafe { (*self.batch.get()).held };
        // SAFETY: the chain is the batch's.
        let held =
            std::iter::successors(unsafe { first.as_ref() }, |head| unsafe { head.next.as_ref() });
        let mut nodes = try_collect(held.map(|head| head.node)).unwrap_or_default();
        nodes.sort_unstable();
        POOL.end_guards(|node| nodes.binary_search(&node).is_ok());
        self.lock.unlock();
    }

    /// In the child of a fork: there is no worker, and the pending count is set to the callbacks
    /// that are really there (a thread of the parent may have been between counting and pushing).
    /// Waiting callbacks wait for a new grace period. If this thread is running this queue's
    /// callbacks it keeps the lock and its batch. If the fork could not take the lock, the batch is
    /// in an unknown state and is abandoned. `recount`: false if this thread has callbacks in hand,
    /// which are in the pending count (see `domain/fork.rs`).
    pub(crate) fn after_fork(&self, reclaimer: &Reclaimer, recount: bool) {
        self.started.store(false, Ordering::Relaxed);
        self.worker.after_fork();
        // SAFETY: the only thread.
        let batch = unsafe { &mut *self.batch.get() };
        if !self.running_here() {
            self.lock.reset();
            batch.unsettled = Default::default();
            if self.missed.swap(false, Ordering::Relaxed) {
                *batch = Batch::EMPTY;
            }
            batch.ready = join(batch.ready, &mut batch.waiting);
            batch.held = join(batch.held, &mut batch.waiting);
        }
        join(self.aside.take(), &mut batch.waiting);
        batch.cookie = reclaimer.grace.cookie();
        self.note_load(batch);
        // SAFETY: the only thread.
        let [first, second, held] = unsafe { self.count(reclaimer) };
        self.held.store(held.bits(), Ordering::Relaxed);
        if recount {
            self.lane(reclaimer).pending.set([first, second]);
        }
    }

    /// The callbacks on the lists and in the batch.
    ///
    /// # Safety
    /// Under the lock.
    pub(super) unsafe fn count(&self, reclaimer: &Reclaimer) -> Sums {
        // SAFETY: the caller's promise.
        let batch = unsafe { &*self.batch.get() };
        let mut loads = batch.unsettled;
        reclaimer.lists.add_up(self.index, &mut loads);
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
        // Without a walk along heads that may not be in the cache.
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
