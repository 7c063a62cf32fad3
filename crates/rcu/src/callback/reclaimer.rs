// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reclaimer of a domain: per-CPU lists and queues, caps, workers, and the domain's grace
//! periods. Here threads wait for callbacks: `barrier`, and the end of a domain.

use super::limits::Cap;
use super::per_cpu_lists::{Lanes, PerCpuLists};
use super::queue::{Queue, Who};
use super::unserved::Unserved;
use crate::grace::periods::GracePeriods;
use crate::grace::sequence::GpSeq;
use crate::grace::stats::{CallbackStats, Stats};
use crate::platform::Instant;
use crate::platform::cancel::CancelDisabled;
use crate::platform::event::Event;
use crate::platform::lock::Lock;
use crate::platform::sys;
use crate::thread;
use crate::thread::id::DomainId;
use crate::thread::load::Load;
use crate::thread::pool::POOL;
use crate::thread::protected::ProtectedNodes;
use crate::thread::record::Record;
use crate::thread::registry::Registry;
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// Shared by all users of a domain. Lives as long as its `Domain` and its workers.
pub(crate) struct Reclaimer {
    pub(crate) grace: GracePeriods,
    pub(super) stats: CallbackStats,
    pub(crate) lists: PerCpuLists,
    pub(crate) queues: Box<[Queue]>,
    cap: Cap,
    soft_cap: Cap,
    /// The fork that is being prepared keeps owners out of their buffers.
    buffers_held: AtomicBool,
    barrier_lock: Lock,
    stop: AtomicBool,
    /// For `barrier`: callbacks have run.
    progress: Event,
    /// For registrations over the cap: there is room.
    room: Event,
    pub(super) workers: Workers,
    pub(super) unserved: Unserved,
    /// Restarts and fallbacks that the records counted for earlier domains: records outlive
    /// domains. The default domain has no predecessor, and readers before it is built.
    counted_before: (u64, u64),
    /// For `inspect.rs`.
    lanes: Lanes,
}

/// The threads to join when the domain is dropped. In the child of a fork that a worker's callback
/// made, the worker is a thread that cannot be joined, so they are counted as well.
pub(crate) struct Workers {
    lock: Lock,
    threads: UnsafeCell<Vec<sys::Thread>>,
    /// Threads that use the domain, or are about to.
    at_work: AtomicUsize,
}

// SAFETY: the vector is touched under the lock only.
unsafe impl Sync for Workers {}

impl Workers {
    /// For so many at a time: a thread that starts one may find no memory.
    fn new(most: usize) -> Workers {
        Workers {
            lock: Lock::new(),
            threads: UnsafeCell::new(Vec::with_capacity(most)),
            at_work: AtomicUsize::new(0),
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<sys::Thread>) -> R) -> R {
        self.lock.lock();
        // SAFETY: under the lock.
        let result = f(unsafe { &mut *self.threads.get() });
        self.lock.unlock();
        result
    }

    /// Adds the one that `start` starts, which calls [`Workers::leave`]. Whether it did.
    fn add(&self, start: impl FnOnce() -> Option<sys::Thread>) -> bool {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        let Some(thread) = start() else {
            self.leave();
            return false;
        };
        self.with(|workers| workers.push(thread));
        true
    }

    /// A worker ends: it uses nothing of the domain from here on.
    fn leave(&self) {
        self.at_work.fetch_sub(1, Ordering::Release);
    }

    fn join(&self) {
        loop {
            // In this order: one that is still there may start another.
            let at_work = self.at_work.load(Ordering::Acquire);
            let workers = self.with(std::mem::take);
            match at_work {
                0 if workers.is_empty() => return,
                _ if workers.is_empty() => sys::sleep(Duration::from_millis(1)),
                _ => workers.into_iter().for_each(sys::Thread::join),
            }
        }
    }

    /// In the child of a fork: the threads do not exist, but for this one if it is a worker. One
    /// may have been changing the list.
    fn after_fork(&self, is_worker: bool) {
        self.lock.reset();
        self.with(|workers| workers.drain(..).for_each(std::mem::forget));
        self.at_work.store(is_worker.into(), Ordering::Relaxed);
    }
}

impl Reclaimer {
    /// Where things are, for `inspect.rs`.
    pub(crate) const GRACE: usize = offset_of!(Reclaimer, grace);
    pub(crate) const LANES: usize = offset_of!(Reclaimer, lanes);

    /// `lanes`: 1, or one per CPU.
    pub(crate) fn new(grace: GracePeriods, lanes: usize, cap: Cap, soft_cap: Cap) -> Reclaimer {
        let lists = PerCpuLists::new(lanes, grace.barrier);
        let registry = grace.registry;
        let counted_before = match grace.id {
            DomainId::GLOBAL => (0, 0),
            _ => (sum(registry, |r| &r.restarts), sum(registry, |r| &r.fallbacks)),
        };
        Reclaimer {
            lanes: Lanes::of(lists.lanes()),
            grace,
            stats: CallbackStats::new(),
            lists,
            queues: (0..lanes).map(Queue::new).collect(),
            cap,
            soft_cap: soft_cap.min(cap),
            buffers_held: AtomicBool::new(false),
            barrier_lock: Lock::new(),
            stop: AtomicBool::new(false),
            progress: Event::new(),
            room: Event::new(),
            // A worker for each queue, and a thread for grace periods in the background.
            workers: Workers::new(lanes + 1),
            unserved: Unserved::new(),
            counted_before,
        }
    }

    /// The nodes in slots now.
    pub(crate) fn scan(&self) -> ProtectedNodes {
        ProtectedNodes::scan(self.registry().records().map(|r| &r.slots), &POOL)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn index(&self) -> usize {
        self.grace.id.index()
    }

    pub(crate) fn registry(&self) -> &'static Registry {
        self.grace.registry
    }

    pub(crate) fn cap(&self) -> &Cap {
        &self.cap
    }

    pub(crate) fn soft_cap(&self) -> &Cap {
        &self.soft_cap
    }

    /// The callbacks that wait, except those that wait for guards only. Never too few.
    pub(crate) fn load(&self) -> Load {
        self.lists.load()
    }

    /// The callbacks that wait for guards only.
    fn held(&self) -> Load {
        self.queues.iter().fold(Load::NONE, |sum, q| sum.add(q.held()))
    }

    pub(crate) fn over_cap(&self) -> bool {
        let load = self.load();
        load.bytes() > self.cap.bytes || load.callbacks() > self.cap.callbacks
    }

    /// A worker has done a step: ends the request for quick grace periods, if the load is small.
    pub(crate) fn calm(&self) {
        let (load, cap) = (self.load(), self.soft_cap);
        if load.bytes() <= cap.bytes && load.callbacks() <= cap.callbacks {
            self.grace.urgency.calm();
        }
    }

    /// Some callbacks have run.
    pub(crate) fn notice_progress(&self) {
        // After the pending count shows it: pairs with the sleepers'.
        fence(Ordering::SeqCst);
        if self.progress.awaited() {
            self.progress.happen();
        }
        if self.room.awaited() {
            let (load, cap) = (self.load(), self.cap);
            if load.bytes() <= cap.bytes - cap.bytes / 4
                && load.callbacks() <= cap.callbacks - cap.callbacks / 4
            {
                // As many threads as CPUs. Each registers until the cap is reached again.
                self.room.happen_for(self.queues.len() as i32);
            }
        }
    }

    /// Sleeps until there is room below the cap, at most `time`.
    pub(crate) fn await_room(&self, time: Duration) {
        self.room.sleep_unless(time, || !self.over_cap());
    }

    /// Wakes the workers that have work, and starts those that are missing.
    pub(crate) fn wake_workers(self: &Arc<Reclaimer>) {
        self.queues.iter().filter(|q| q.any(self)).for_each(|q| q.worker.wake());
        if self.queues.iter().any(|q| q.lacks_worker(self)) {
            self.start_workers();
        }
    }

    /// Starts the missing workers of all lanes that have work.
    pub(super) fn start_workers(self: &Arc<Reclaimer>) {
        // A handler that ends this thread does not come between the note and the look.
        let _blocked = sys::SignalsBlocked::new();
        self.unserved.take();
        let mut queues = self.queues.iter().enumerate();
        // If the system refuses a thread, it is not asked for more now.
        queues.all(|(index, q)| !q.lacks_worker(self) || self.ensure_worker(index));
    }

    /// See `Domain::barrier`.
    ///
    /// Callbacks that a look has found to wait for guards are in no phase, so nobody waits for
    /// them. One whose guard has gone since that look must run: hence a look at all of them.
    pub(crate) fn barrier(self: &Arc<Reclaimer>) {
        let _cancel = CancelDisabled::new();
        self.barrier_lock.lock();
        self.grace.urgency.begin();
        self.lists.phase().barrier(|phase| self.drain(phase));
        let queues = self.queues.iter().enumerate();
        for (index, queue) in queues.filter(|(_, q)| q.held() != Load::NONE) {
            queue.step(self, Who::Barrier);
            // The step may have left callbacks of which the worker does not know.
            if self.ensure_worker(index) {
                queue.worker.wake();
            }
        }
        self.grace.urgency.end();
        self.barrier_lock.unlock();
    }

    /// Waits until no callback of this phase waits, but for guards.
    fn drain(self: &Arc<Reclaimer>, phase: usize) {
        /// How often to look.
        const LOOK: Duration = Duration::from_millis(1);
        /// After this time, find out whether owners of callbacks are dead.
        const DOUBT: Duration = Duration::from_millis(100);
        let doubt = Instant::now() + DOUBT;
        while self.lists.waiting(phase) != Load::NONE {
            self.lists.sweep(self.registry(), |_| Some(true));
            if Instant::now() > doubt && self.grace.time_to_look_for_dead() {
                self.grace.forget_dead_owners();
            }
            self.recount();
            for (index, queue) in self.queues.iter().enumerate() {
                if !queue.any(self) && !queue.loaded() {
                    continue;
                }
                if self.ensure_worker(index) {
                    queue.worker.wake();
                } else {
                    // The system refused a thread for the worker. The caller waits for the
                    // callbacks anyway, so it may run them.
                    queue.step(self, Who::Barrier);
                    // Some may be left, which wait for guards.
                    self.unserved.note();
                }
            }
            self.progress.sleep_unless(LOOK, || self.lists.waiting(phase) == Load::NONE);
        }
    }

    /// Has a grace period run in the background.
    pub(crate) fn start_background(self: &Arc<Reclaimer>, cookie: GpSeq) {
        self.grace.background.ask(cookie);
        self.ensure_background();
    }

    /// A poll for a grace period that has not ended. Returns whether it has ended now.
    #[cold]
    pub(crate) fn poll_background(self: &Arc<Reclaimer>, cookie: GpSeq) -> bool {
        /// How long a poll tries itself, if the system refuses a thread.
        const ATTEMPT: Duration = Duration::from_millis(1);
        // A grace period that was not started does not run in the background.
        self.grace.background.last().0 >= cookie.0
            && !self.ensure_background()
            && self.grace.run_until(cookie, Some(Instant::now() + ATTEMPT))
    }

    /// Whether there is a thread for grace periods in the background, started just now if need be.
    fn ensure_background(self: &Arc<Reclaimer>) -> bool {
        self.grace.background.ensure(|| {
            self.start(format_args!("reprieve-gp"), |reclaimer| {
                reclaimer.grace.serve_background(|| reclaimer.stopping());
            })
        })
    }

    /// Starts one of the domain's threads. False if the system refuses it.
    pub(super) fn start(
        self: &Arc<Reclaimer>,
        name: std::fmt::Arguments<'_>,
        work: impl FnOnce(&Arc<Reclaimer>) + Send + 'static,
    ) -> bool {
        let own = self.clone();
        let run = move || {
            thread::set_works_for(Arc::as_ptr(&own).addr());
            work(&own);
            thread::set_works_for(0);
            own.workers.leave();
        };
        self.workers.add(|| thread::start(name, run))
    }

    /// The counters.
    pub(crate) fn stats(&self) -> Stats {
        let registry = self.registry();
        let (mut unused, mut ran) = (Load::NONE, Load::NONE);
        for record in registry.records() {
            let idle = record.buffer.idle_load();
            (unused, ran) = (unused.add(idle.0), ran.add(idle.1));
        }
        let held = self.held();
        let load = self.lists.load().less_or_none(unused.add(ran)).add(held);
        Stats {
            grace_periods: self.grace.latency(),
            waiting: load.callbacks(),
            waiting_bytes: load.bytes(),
            held: held.callbacks(),
            run: self.stats.run.load(Ordering::Relaxed) + self.lists.ran() + ran.callbacks(),
            over_cap: self.stats.over_cap.load(Ordering::Relaxed),
            helped: self.stats.helped.load(Ordering::Relaxed),
            restarts: sum(registry, |r| &r.restarts) - self.counted_before.0,
            fallbacks: sum(registry, |r| &r.fallbacks) - self.counted_before.1,
            stalls: self.grace.watch.stalls.load(Ordering::Relaxed),
            forgotten: self.grace.watch.forgotten.load(Ordering::Relaxed),
            visits: self.grace.visits(),
            threads: registry
                .records()
                .filter(|r| r.owner() != 0 && r.left_behind().is_none())
                .count() as u64,
        }
    }

    /// The domain is dropped: waits for the callbacks, then stops the workers. `withdraw` takes the
    /// domain from the fork handlers, while there still are workers. Not in a callback.
    pub(crate) fn close(self: &Arc<Reclaimer>, withdraw: impl FnOnce()) {
        let _cancel = CancelDisabled::new();
        // Guards are leaked ones: they borrow the domain. But callbacks of C may be in sections.
        self.registry().records().for_each(|r| r.end_guards());
        // Again for callbacks that callbacks have registered: without a worker nobody else runs
        // them, and what they leave in a buffer the next domain of this index would take for its
        // own. Guards that hold some are leaked ones, in the pool.
        loop {
            self.barrier();
            if self.load() == Load::NONE && self.held() == Load::NONE {
                break;
            }
            self.queues.iter().for_each(Queue::end_guards);
        }
        self.stop.store(true, Ordering::SeqCst);
        // For good: a grace period in the background must not sleep through its ticks while we wait
        // for its thread.
        self.grace.urgency.begin();
        self.grace.background.wake();
        self.queues.iter().for_each(|q| q.worker.wake());
        withdraw();
        self.workers.join();
        // For the next domain of this index.
        self.registry().records().for_each(|r| r.reset());
    }

    /// For forks: keeps other threads out of their buffers. Waits at most `limit` for threads that
    /// are inside.
    pub(crate) fn hold_buffers(&self, limit: Duration) {
        let held = self.lists.hold(self.registry(), self.grace.own_record(), limit);
        self.buffers_held.store(held, Ordering::Relaxed);
    }

    pub(crate) fn release_buffers(&self) {
        if self.buffers_held.swap(false, Ordering::Relaxed) {
            self.lists.release(self.registry());
        }
    }

    pub(crate) fn after_fork(&self) {
        self.grace.after_fork();
        self.barrier_lock.reset();
        self.progress.after_fork();
        self.room.after_fork();
        self.buffers_held.store(false, Ordering::Relaxed);
        let recount = self.lists.after_fork(self.registry(), self.grace.own_record());
        self.workers.after_fork(thread::works_for() == std::ptr::from_ref(self).addr());
        self.queues.iter().for_each(|q| q.after_fork(self, recount));
        self.unserved.note();
    }
}
/// The sum of a counter over all records.
fn sum(registry: &Registry, counter: impl Fn(&Record) -> &AtomicU64) -> u64 {
    registry.records().map(|r| counter(r).load(Ordering::Relaxed)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the worker whose callback forked, in the child.
    #[test]
    fn who_cannot_be_joined_is_waited_for() {
        let workers = Workers::new(1);
        assert!(workers.add(|| thread::start(format_args!("gone"), || ())));
        workers.after_fork(true);
        let joined = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                workers.join();
                joined.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!joined.load(Ordering::SeqCst));
            workers.leave();
        });
    }
}
