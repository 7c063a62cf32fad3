// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue-based fair lock: first come, first served among those who run.
//!
//! # State
//! The queue of Mellor-Crummey and Scott: `tail` is the last node, each waits on a word of its own,
//! and the holder's node is the first. What is added is what makes queues bear overcommitment
//! (after Dice, "Malthusian locks", EuroSys 2017): the holder may take waiters that do not run out
//! of the queue and put them on the *passive* list, which the holder alone touches. A passive
//! waiter sleeps. The holder gives the lock to the first of the queue that runs; to the oldest
//! passive waiter if none in the queue does, and once per [`FAIR`] in any case. So a waiter is
//! overtaken for at most FAIR times the number of passive waiters before it.
//!
//! # A node's state
//! `WAITING` (it spins) becomes `PARKED` by its thread, before that sleeps, or `PASSIVE` by the
//! holder, which asks its thread to sleep; `PASSIVE` becomes `PARKED`. Any of them becomes
//! `GRANTED`, by an exchange of the holder's, which then wakes the thread if it found `PARKED`.
//!
//! # Nobody is lost
//! > **Invariant.** A node whose thread waits is in the queue or in the passive list, and exactly
//! > one thread is the holder if there is such a node.
//!
//! The last node of the queue cannot be taken out: another thread may be linking itself to it. The
//! lock becomes free only by the compare-and-swap of `tail` from the holder's node to null, when
//! the passive list is empty; if it is not, the same compare-and-swap makes the oldest passive node
//! the queue.

//!
//! # Forks
//! The child's queue has the nodes of threads that do not exist there, and perhaps a link is
//! missing between them. If the holder forked, it lets go of all of them at its release (otherwise
//! the lock is lost, as any lock of another thread):
//!
//! > **Invariant.** A node has the epoch of the process in which it was put into the queue, and is
//! > not used again while it is in one. In the queue, older epochs come first.
//!
//! The passive list, then, is the parent's altogether, and the queue is up to the first node of
//! this process. Its thread knows that it is the first, by the epoch of the node before, and
//! publishes it in `foremost`. The holder, which has an older epoch itself, frees the lock if the
//! last node is of another process, and else waits for `foremost`.

use super::node::{Node, give_back, take};
use crate::platform::fork::epoch;
use crate::platform::sync::{
    AtomicPtr, AtomicU32, Cell, Futex, Ordering, broken, const_unless_loom,
};
use crate::thread::Line;
use crate::wait::{self, Advice, FAIR, Waiter};
use std::ptr::null_mut;

const WAITING: u32 = 0;
const PASSIVE: u32 = 1;
const PARKED: u32 = 2;
const GRANTED: u32 = 3;

pub(crate) struct Queue {
    tail: AtomicPtr<Node>,
    /// The holder of the lock, for waiters.
    owner: AtomicU32,
    /// After a fork by the holder: the first node of this process.
    foremost: AtomicPtr<Node>,
    /// The holder's alone, from here on: its node, the passive list, and when one of that list last
    /// had the lock.
    holder: Cell<*mut Node>,
    first: Cell<*mut Node>,
    last: Cell<*mut Node>,
    since: Cell<u64>,
}

// SAFETY: the cells are touched by the lock's holder only, and holders are ordered by the lock.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Queue {
    const_unless_loom! {
        pub(crate) fn new() -> Queue {
            Queue {
                tail: AtomicPtr::new(null_mut()),
                owner: AtomicU32::new(0),
                foremost: AtomicPtr::new(null_mut()),
                holder: Cell::new(null_mut()),
                first: Cell::new(null_mut()),
                last: Cell::new(null_mut()),
                since: Cell::new(0)
            }
        }
    }

    pub(crate) fn is_locked(&self) -> bool {
        !self.tail.load(Ordering::Relaxed).is_null()
    }

    #[inline]
    pub(crate) fn try_lock(&self, line: &Line) -> bool {
        if self.is_locked() {
            return false;
        }
        let node = take(line);
        // SAFETY: nodes live for good, and this one is ours.
        unsafe { (*node).next.store(null_mut(), Ordering::Relaxed) };
        let free =
            self.tail.compare_exchange(null_mut(), node, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_err() {
            give_back(node);
            return false;
        }
        self.taken(node);
        true
    }

    #[inline]
    pub(crate) fn lock(&self, line: &Line) {
        let node = take(line);
        // SAFETY: nodes live for good, and this one is ours.
        let ours = unsafe { &*node };
        // As in `take`: no store that is not needed.
        if !ours.next.load(Ordering::Relaxed).is_null() {
            ours.next.store(null_mut(), Ordering::Relaxed);
        }
        if ours.state.load(Ordering::Relaxed) != WAITING {
            ours.state.store(WAITING, Ordering::Relaxed);
        }
        let before = self.tail.swap(node, Ordering::AcqRel);
        if !before.is_null() {
            // SAFETY: nodes live for good; this one waits for its next before it leaves the queue.
            let before = unsafe { &*before };
            // Before the link: after it, that node may be in use for another lock.
            let first = before.epoch.load(Ordering::Relaxed) != ours.epoch.load(Ordering::Relaxed);
            before.next.store(node, Ordering::Release);
            if first {
                self.foremost.store(node, Ordering::Release);
            }
            self.await_grant(ours);
        } else {
            self.taken(node);
        }
    }

    /// The holder is `node`'s thread: says the thread itself, or who grants it the lock. Then the
    /// line of the lock does not go from CPU to CPU for that.
    fn taken(&self, node: *mut Node) {
        self.holder.set(node);
        // SAFETY: nodes live for good.
        self.owner.store(unsafe { (*node).who.load(Ordering::Relaxed) }, Ordering::Relaxed);
    }

    #[cold]
    fn await_grant(&self, node: &Node) {
        let mut waiter = Waiter::new();
        loop {
            // Nobody else looks at this word, so looking often takes it from nobody.
            wait::quick(|| node.state.load(Ordering::Relaxed) != WAITING);
            let state = node.state.load(Ordering::Acquire);
            if state == GRANTED {
                return;
            }
            let sleep = state == PASSIVE
                || waiter.look(|| self.owner.load(Ordering::Relaxed)) == Advice::Sleep;
            let parked = || {
                let change = (Ordering::AcqRel, Ordering::Relaxed);
                broken!(
                    ParkedByStore,
                    {
                        node.state.store(PARKED, Ordering::Release);
                        true
                    },
                    node.state.compare_exchange(state, PARKED, change.0, change.1).is_ok()
                )
            };
            if sleep && parked() {
                while node.state.load(Ordering::Acquire) == PARKED {
                    node.state.wait(PARKED, None);
                }
                return;
            }
        }
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The caller holds it.
    #[inline]
    pub(crate) unsafe fn unlock(&self) {
        let node = self.holder.get();
        // SAFETY: nodes live for good.
        let ours = unsafe { &*node };
        let next = ours.next.load(Ordering::Acquire);
        let alone = next.is_null() && broken!(PassiveForgotten, true, self.first.get().is_null());
        let free = || {
            let (to, relaxed) = (null_mut(), Ordering::Relaxed);
            self.tail.compare_exchange(node, to, Ordering::AcqRel, relaxed).is_ok()
        };
        if alone && free() {
            give_back(node);
        } else {
            self.unlock_slow(node, next);
        }
    }

    /// Releases the lock for which others wait.
    #[inline(never)]
    fn unlock_slow(&self, node: *mut Node, mut next: *mut Node) {
        // SAFETY: nodes live for good.
        let ours = unsafe { &*node };
        if broken!(GhostGranted, false, ours.epoch.load(Ordering::Relaxed) != epoch()) {
            return self.unlock_forked(node);
        }
        if next.is_null() {
            let first = broken!(PassiveForgotten, null_mut(), self.take_first());
            let change =
                self.tail.compare_exchange(node, first, Ordering::AcqRel, Ordering::Relaxed);
            if change.is_ok() {
                give_back(node);
                if !first.is_null() {
                    self.grant(first);
                }
                return;
            }
            if !first.is_null() {
                self.put_first(first);
            }
            // Another thread is between its exchange of `tail` and the link.
            wait::quick(|| {
                next = ours.next.load(Ordering::Acquire);
                !next.is_null()
            });
            while next.is_null() {
                // The other thread was preempted there.
                wait::pass();
                next = ours.next.load(Ordering::Acquire);
            }
        }
        give_back(node);
        self.grant(self.choose(next));
    }

    /// Releases a lock that was taken before a fork: none of the parent's waiters exists.
    #[cold]
    fn unlock_forked(&self, node: *mut Node) {
        self.first.set(null_mut());
        self.last.set(null_mut());
        let of_parent = |node: *mut Node| {
            // SAFETY: nodes live for good.
            let of = unsafe { (*node).epoch.load(Ordering::Relaxed) };
            of != epoch()
        };
        loop {
            let tail = self.tail.load(Ordering::Acquire);
            if !of_parent(tail) {
                break;
            }
            let (to, relaxed) = (null_mut(), Ordering::Relaxed);
            if self.tail.compare_exchange(tail, to, Ordering::AcqRel, relaxed).is_ok() {
                return give_back(node);
            }
        }
        let first = loop {
            let first = self.foremost.load(Ordering::Acquire);
            // A node that a thread of the parent's published is in the queue for good.
            if !first.is_null() && !of_parent(first) {
                break first;
            }
            wait::pass();
        };
        self.foremost.store(null_mut(), Ordering::Relaxed);
        give_back(node);
        self.grant(self.choose(first));
    }

    /// As a fork by the holder `node` leaves it to the child: behind it, the `waiting` nodes, where
    /// only `linked` says whether the first is linked already; and the passive ones. All are
    /// of [`ghost`](super::node::ghost).
    #[cfg(all(loom, test))]
    pub(crate) fn left(
        node: *mut Node,
        waiting: &[*mut Node],
        linked: bool,
        passive: &[*mut Node],
    ) -> Queue {
        let queue = Queue::new();
        queue.holder.set(node);
        let mut last = node;
        for (i, &next) in waiting.iter().enumerate() {
            if i > 0 || linked {
                // SAFETY: nodes live for good.
                unsafe { (*last).next.store(next, Ordering::Relaxed) };
            }
            last = next;
        }
        queue.tail.store(last, Ordering::Relaxed);
        passive.iter().for_each(|&node| queue.put_last(node));
        queue
    }

    /// The next holder: `next` and what follows it are the queue.
    fn choose(&self, next: *mut Node) -> *mut Node {
        // SAFETY: nodes live for good.
        if self.first.get().is_null() && unsafe { (*next).next.load(Ordering::Relaxed) }.is_null() {
            return next;
        }
        let now = wait::now();
        let due = now.saturating_sub(self.since.get()) >= FAIR;
        let mut chosen = next;
        let mut runs = due || self.runs(chosen, now);
        while !runs {
            // SAFETY: nodes live for good.
            let after = unsafe { (*chosen).next.load(Ordering::Acquire) };
            if after.is_null() {
                break;
            }
            self.put_last(chosen);
            chosen = after;
            runs = self.runs(chosen, now);
        }
        if due || !runs {
            let first = self.take_first();
            if !first.is_null() {
                self.since.set(now);
                // SAFETY: a passive node is the holder's.
                unsafe { (*first).next.store(chosen, Ordering::Relaxed) };
                return first;
            }
        }
        chosen
    }

    /// Makes the thread of `node` the holder.
    fn grant(&self, node: *mut Node) {
        self.taken(node);
        // SAFETY: nodes live for good. After the exchange it is another's: only its address counts.
        unsafe {
            let state = &raw const (*node).state;
            let before = (*state).swap(GRANTED, Ordering::AcqRel);
            if before == PARKED && !broken!(GrantWithoutWaking, true, false) {
                Futex::wake_at(state, 1);
            }
        }
    }

    /// Whether the thread of a waiting node runs.
    fn runs(&self, node: *mut Node, now: u64) -> bool {
        // SAFETY: nodes live for good.
        let node = unsafe { &*node };
        node.state.load(Ordering::Relaxed) == WAITING
            && wait::runs(node.who.load(Ordering::Relaxed), now)
    }

    /// Takes the oldest passive node out of its list, or null. Its `next` is null then.
    fn take_first(&self) -> *mut Node {
        let first = self.first.get();
        if !first.is_null() {
            // SAFETY: a passive node is the holder's.
            let links = unsafe { &(*first).next };
            self.first.set(links.load(Ordering::Relaxed));
            links.store(null_mut(), Ordering::Relaxed);
        }
        first
    }

    /// Puts it back where it was.
    fn put_first(&self, node: *mut Node) {
        let first = self.first.get();
        if first.is_null() {
            self.last.set(node);
        }
        // SAFETY: a passive node is the holder's.
        unsafe { (*node).next.store(first, Ordering::Relaxed) };
        self.first.set(node);
    }

    /// Makes a node of the queue, not the last, passive.
    fn put_last(&self, node: *mut Node) {
        // SAFETY: nodes live for good; a link of a node that is not the last is the holder's.
        let ours = unsafe { &*node };
        ours.next.store(null_mut(), Ordering::Relaxed);
        if self.first.get().is_null() {
            self.first.set(node);
        } else {
            // SAFETY: a passive node is the holder's.
            unsafe { (*self.last.get()).next.store(node, Ordering::Relaxed) };
        }
        self.last.set(node);
        // The node's thread may be parked already.
        let _ = ours.state.compare_exchange(WAITING, PASSIVE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
pub use raw::RawFairLock;

#[cfg(not(loom))]
mod raw {
    use super::Queue;
    use crate::lock::mark::{self, Mark};
    use crate::thread;
    use std::marker::PhantomData;

    /// The queue-based fair lock, for `lock_api`.
    pub struct RawFairLock<M>(Queue, PhantomData<M>);

    // SAFETY: as `M` is never made.
    unsafe impl<M> Send for RawFairLock<M> {}
    // SAFETY: as above.
    unsafe impl<M> Sync for RawFairLock<M> {}

    // SAFETY: `Queue` lets one thread in at a time: the one that found no tail, or whom the last
    // holder granted the lock.
    unsafe impl<M: Mark> lock_api::RawMutex for RawFairLock<M> {
        #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
        const INIT: RawFairLock<M> = RawFairLock(Queue::new(), PhantomData);
        /// The holder's node is its thread's.
        type GuardMarker = lock_api::GuardNoSend;

        #[inline]
        fn lock(&self) {
            let line = thread::me();
            self.0.lock(line);
            mark::begun::<M>(line, true);
        }

        #[inline]
        fn try_lock(&self) -> bool {
            let line = thread::me();
            mark::begun::<M>(line, self.0.try_lock(line))
        }

        #[inline]
        unsafe fn unlock(&self) {
            // SAFETY: the caller holds the lock.
            unsafe { self.0.unlock() };
            mark::leave::<M>();
        }

        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }
    }
}
