// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of a domain share: registry, engine, grace periods, queues, accounts. And the table of all domains, for fork.

use super::driver::Driver;
use super::{Builder, Engine};
use crate::barrier::Kind;
use crate::callback::cap::Cap;
use crate::callback::intake::Intake;
use crate::callback::load::Load;
use crate::callback::queue::{Queue, Who};
use crate::engine::{self, Attempt};
use crate::error::Error;
use crate::grace::{Cookie, Grace};
use crate::guard::DomainId;
use crate::inspect::Lanes;
use crate::record::Record;
use crate::registry::Registry;
use crate::slots::Protected;
use crate::stats::{self, Stats, uptime};
use crate::sync::{Lock, decrement};
use crate::sys;
use crate::thread::{self, MAX_DOMAINS, REGISTRIES};
use crate::watch::{Stall, Watch};
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What all users of a domain share. Lives as long as its `Domain` and its workers.
pub(crate) struct Core {
    index: usize,
    pub(super) id: DomainId,
    registry: &'static Registry,
    pub(super) kind: Engine,
    engine: Box<dyn engine::Engine>,
    pub(super) barrier: Kind,
    pub(crate) grace: Grace,
    grace_stats: stats::Grace,
    pub(super) watch: Watch,
    /// Grace periods that visited CPUs.
    visits: AtomicU64,
    pub(crate) callbacks: stats::Callbacks,
    pub(crate) intake: Intake,
    pub(crate) queues: Box<[Queue]>,
    cap: Cap,
    soft_cap: Cap,
    /// When it was last looked for what dead threads left, in nanoseconds of [`uptime`].
    sought: AtomicU64,
    /// The fork that is being prepared has the stashes.
    stashes_held: AtomicBool,
    barrier_lock: Lock,
    pub(super) driver: Driver,
    stop: AtomicBool,
    /// For `barrier`: callbacks have run.
    progress: Event,
    /// For registrations over the cap: there is room.
    room: Event,
    pub(crate) workers: Workers,
    /// Restarts and fallbacks that the records already counted when the domain was built: they outlive domains.
    counted_before: (u64, u64),
    /// For `inspect.rs`.
    lanes: Lanes,
}

/// Something that happens again and again, and who waits for it.
struct Event {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl Event {
    const fn new() -> Event {
        Event { count: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

    /// Sleeps until it happens, at most `time`, if `unless` does not hold.
    fn wait(&self, time: Duration, unless: impl FnOnce() -> bool) {
        let count = self.count.load(Ordering::SeqCst);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if !unless() {
            crate::sync::wait(&self.count, count, Some(time));
        }
        decrement(&self.sleepers);
    }

    fn awaited(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    fn happen(&self, wake: i32) {
        self.count.fetch_add(1, Ordering::SeqCst);
        crate::sync::wake_some(&self.count, wake);
    }
}

/// The threads to join when the domain is dropped.
pub(crate) struct Workers(Lock, UnsafeCell<Vec<sys::Thread>>);

// SAFETY: the vector is touched under the lock only.
unsafe impl Sync for Workers {}

impl Workers {
    fn new() -> Workers {
        Workers(Lock::new(), UnsafeCell::new(Vec::new()))
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<sys::Thread>) -> R) -> R {
        self.0.lock();
        // SAFETY: under the lock.
        let result = f(unsafe { &mut *self.1.get() });
        self.0.unlock();
        result
    }

    pub(crate) fn add(&self, thread: sys::Thread) {
        self.with(|workers| workers.push(thread));
    }

    fn join(&self) {
        self.with(std::mem::take).into_iter().for_each(sys::Thread::join);
    }

    /// In the child of a fork: the threads do not exist, and one may have been at the list.
    fn after_fork(&self) {
        self.0.reset();
        self.with(|workers| std::mem::forget(std::mem::take(workers)));
    }
}

/// Domains by index. `RESERVED` while one comes or goes.
pub(crate) static CORES: [AtomicPtr<Core>; MAX_DOMAINS] =
    [const { AtomicPtr::new(null_mut()) }; MAX_DOMAINS];
const RESERVED: *mut Core = std::ptr::without_provenance_mut(align_of::<Core>());

/// All domains there are. For fork handlers: nothing keeps a domain from going otherwise.
pub(crate) fn cores() -> impl Iterator<Item = &'static Core> {
    CORES.iter().map(|c| c.load(Ordering::Acquire)).filter(|&c| c != RESERVED).filter_map(|c| {
        // SAFETY: a pointer in the table leads to a live core; it is taken out, under the fork lock, before the core goes.
        unsafe { c.as_ref() }
    })
}

/// Takes a free index, other than that of the default domain.
pub(super) fn reserve() -> Option<usize> {
    let take = |core: &AtomicPtr<Core>| {
        core.compare_exchange(null_mut(), RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    (1..MAX_DOMAINS).find(|&i| take(&CORES[i]))
}

/// Makes a core known to the fork handlers, not in the middle of a fork: they undo what they did to the cores they saw.
pub(super) fn publish(core: &Arc<Core>) {
    publish_if(core, || ((), true));
}

/// The same if `f` says so, which runs while there is no fork.
pub(super) fn publish_if<R>(core: &Arc<Core>, f: impl FnOnce() -> (R, bool)) -> R {
    crate::fork::excluded(|| {
        let (result, publish) = f();
        if publish {
            CORES[core.index].store(Arc::as_ptr(core).cast_mut(), Ordering::Release);
        }
        result
    })
}

impl Core {
    /// Where things are, for `inspect.rs`.
    pub(crate) const SEQUENCE: usize = offset_of!(Core, grace) + Grace::SEQUENCE;
    pub(crate) const COMPLETED: usize = offset_of!(Core, grace_stats) + stats::Grace::COMPLETED;
    pub(crate) const SINCE: usize = offset_of!(Core, grace_stats) + stats::Grace::SINCE;
    pub(crate) const LANES: usize = offset_of!(Core, lanes);

    pub(super) fn new(index: usize, settings: &Builder) -> Core {
        let engine: Box<dyn engine::Engine> = match settings.engine {
            Engine::Restart => Box::new(engine::restart::Restart),
            Engine::Poll => Box::new(engine::poll::Poll),
            Engine::Ltimer { tick } => Box::new(engine::ltimer::Ltimer { tick }),
            Engine::Sched { tick } => Box::new(engine::sched::Sched { tick }),
        };
        let lanes = if settings.single_list { 1 } else { sys::cpus() };
        let barrier = crate::startup::barrier(settings.engine == Engine::Restart);
        let registry = &REGISTRIES[index];
        let id = DomainId::new(index);
        let intake = Intake::new(lanes, barrier);
        Core {
            index,
            id,
            registry,
            lanes: Lanes::of(intake.lanes()),
            kind: settings.engine,
            engine,
            barrier,
            grace: Grace::new(),
            grace_stats: stats::Grace::new(),
            watch: Watch::new(id),
            visits: AtomicU64::new(0),
            callbacks: stats::Callbacks::new(),
            intake,
            queues: (0..lanes).map(Queue::new).collect(),
            cap: settings.cap,
            soft_cap: settings.soft_cap.min(settings.cap),
            sought: AtomicU64::new(0),
            stashes_held: AtomicBool::new(false),
            barrier_lock: Lock::new(),
            driver: Driver::new(),
            stop: AtomicBool::new(false),
            progress: Event::new(),
            room: Event::new(),
            workers: Workers::new(),
            counted_before: (sum(registry, |r| &r.restarts), sum(registry, |r| &r.fallbacks)),
        }
    }

    fn attempt(&self, deadline: Option<Instant>) -> Attempt<'_> {
        Attempt {
            registry: self.registry,
            barrier: self.barrier,
            urgency: &self.grace.urgency,
            deadline,
            watch: &self.watch,
            visits: &self.visits,
        }
    }

    /// See `Domain::stalled`.
    pub(super) fn stalled(&self, longer_than: Duration) -> Option<Stall> {
        self.grace.running().then(|| self.watch.stalled(self.registry, longer_than)).flatten()
    }

    /// See `Domain::forget_dead_threads`.
    pub(super) fn forget_dead_threads(&self) -> usize {
        self.watch.bury_all(self.registry)
    }

    /// Gives up what dead threads left that are in the middle of a registration, and that callbacks wait for. Unless the program has forbidden it.
    pub(crate) fn forget_dead_owners(&self) {
        self.watch.bury_registering(self.registry);
    }

    /// Whether it is time to look for what dead threads left. Of those who ask at the same time one is told so.
    pub(crate) fn seeking_now(&self) -> bool {
        /// In nanoseconds.
        const PAUSE: u64 = 100_000_000;
        let (now, last) = (uptime().as_nanos() as u64, self.sought.load(Ordering::Relaxed));
        now > last + PAUSE
            && self.sought.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// See `Grace::run_until`.
    pub(crate) fn run_until(&self, cookie: Cookie, deadline: Option<Instant>) -> bool {
        self.grace.run_until(cookie, &self.attempt(deadline), &*self.engine, &self.grace_stats)
    }

    /// The nodes in slots now.
    pub(crate) fn scan(&self) -> Protected {
        Protected::scan(self.registry.records())
    }

    /// Whether this thread is inside a plain section of this domain: then it must not wait for a grace period.
    pub(crate) fn in_section(&self) -> bool {
        thread::existing(self.index).is_some_and(|r| r.nesting() != 0)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn registry(&self) -> &'static Registry {
        self.registry
    }

    pub(crate) fn cap(&self) -> &Cap {
        &self.cap
    }

    pub(crate) fn soft_cap(&self) -> &Cap {
        &self.soft_cap
    }

    /// What waits for a grace period or for being run, and not for a guard. Never too little.
    pub(crate) fn load(&self) -> Load {
        let held = self.queues.iter().fold(Load::NONE, |sum, q| sum.add(q.held()));
        self.intake.load().less_or_none(held)
    }

    pub(crate) fn over_cap(&self) -> bool {
        let load = self.load();
        load.bytes() > self.cap.bytes || load.callbacks() > self.cap.callbacks
    }

    /// A worker has done a step: there may be no hurry any more.
    pub(crate) fn calm(&self) {
        let (load, cap) = (self.load(), self.soft_cap);
        if load.bytes() <= cap.bytes && load.callbacks() <= cap.callbacks {
            self.grace.urgency.calm();
        }
    }

    /// Whether the last grace periods were quick.
    pub(crate) fn quick(&self) -> bool {
        self.grace_stats.quick()
    }

    /// See [`engine::quick`].
    pub(crate) fn quick_grace_period(&self) -> bool {
        let start = self.grace_stats.start();
        let done = engine::quick(self.barrier, self.registry);
        self.grace_stats.end(start, done);
        done
    }

    /// Some callbacks have run.
    pub(crate) fn notice_progress(&self) {
        if self.progress.awaited() {
            self.progress.happen(i32::MAX);
        }
        if self.room.awaited() {
            let (load, cap) = (self.load(), self.cap);
            if load.bytes() <= cap.bytes - cap.bytes / 4
                && load.callbacks() <= cap.callbacks - cap.callbacks / 4
            {
                // As many as can run. Each goes on until the cap is reached again.
                self.room.happen(self.queues.len() as i32);
            }
        }
    }

    /// Sleeps until there is room below the cap, at most `time`.
    pub(crate) fn await_room(&self, time: Duration) {
        self.room.wait(time, || !self.over_cap());
    }

    /// Wakes those workers that have something to do.
    pub(crate) fn wake_workers(&self) {
        self.queues.iter().filter(|q| q.any(self)).for_each(|q| q.alarm.wake());
    }

    /// Whether a callback waits for a guard of this thread's: then it must not wait for the callback. See `Queue::waits_for`.
    fn waits_for_us(&self, phase: Option<usize>) -> bool {
        thread::existing(self.index)
            .is_some_and(|r| self.queues.iter().any(|q| q.waits_for(&r.slots, phase)))
    }

    /// See `Domain::barrier`. An error if it would never end, because of this thread's own guards.
    pub(super) fn barrier(self: &Arc<Core>) -> Result<(), Error> {
        /// How often guards of our own are looked for. Once would not do: others may retire what we protect while we wait.
        const LOOK: Duration = Duration::from_millis(1);
        while !self.barrier_lock.lock_for(Some(LOOK)) {
            // Whoever has the lock waits for the callback, or we shall.
            if self.waits_for_us(None) {
                return Err(Error::Protecting);
            }
        }
        self.grace.urgency.begin();
        let result = self.intake.phase().barrier(|phase| self.drain(phase, LOOK));
        self.grace.urgency.end();
        self.barrier_lock.unlock();
        result
    }

    /// Waits until nothing waits of that phase.
    fn drain(self: &Arc<Core>, phase: usize, look: Duration) -> Result<(), Error> {
        /// When it is first found out whether those who keep us waiting are dead.
        const DOUBT: Duration = Duration::from_millis(100);
        let doubt = Instant::now() + DOUBT;
        while self.intake.waiting(phase) != Load::NONE {
            self.intake.sweep(self.registry, |_| Some(true));
            if Instant::now() > doubt && self.seeking_now() {
                self.forget_dead_owners();
            }
            self.audit();
            for (index, queue) in self.queues.iter().enumerate() {
                if !queue.any(self) && !queue.loaded() {
                    continue;
                }
                self.ensure_worker(index);
                if queue.started.load(Ordering::Relaxed) {
                    queue.alarm.wake();
                } else {
                    // The system has no thread for us. The caller waits for the callbacks, whatever they wait for, so it
                    // can as well run them.
                    queue.step(self, Who::Worker);
                }
            }
            self.progress.wait(look, || self.intake.waiting(phase) == Load::NONE);
            if self.waits_for_us(Some(phase)) {
                return Err(Error::Protecting);
            }
        }
        Ok(())
    }

    /// The counters.
    pub(super) fn stats(&self) -> Stats {
        let registry = self.registry;
        let (mut unused, mut ran) = (Load::NONE, Load::NONE);
        for record in registry.records() {
            let idle = record.stash.idle_load();
            (unused, ran) = (unused.add(idle.0), ran.add(idle.1));
        }
        let load = self.intake.load().less_or_none(unused.add(ran));
        Stats {
            grace_periods: self.grace_stats.latency(),
            waiting: load.callbacks(),
            waiting_bytes: load.bytes(),
            run: self.callbacks.run.load(Ordering::Relaxed) + ran.callbacks(),
            over_cap: self.callbacks.over_cap.load(Ordering::Relaxed),
            helped: self.callbacks.helped.load(Ordering::Relaxed),
            restarts: sum(registry, |r| &r.restarts) - self.counted_before.0,
            fallbacks: sum(registry, |r| &r.fallbacks) - self.counted_before.1,
            stalls: self.watch.stalls.load(Ordering::Relaxed),
            forgotten: self.watch.forgotten.load(Ordering::Relaxed),
            boosted: self.watch.boost.count.load(Ordering::Relaxed),
            visits: self.visits.load(Ordering::Relaxed),
            threads: registry.records().filter(|r| r.owner() != 0).count() as u64,
        }
    }

    /// The domain is dropped: waits for the callbacks, then stops the workers.
    pub(super) fn close(self: &Arc<Core>) {
        // No guard can be alive: they borrow the domain.
        self.registry.records().for_each(|r| r.reset());
        if thread::in_callback() {
            // A worker cannot wait for itself. The domain stays, as a leak.
            std::mem::forget(self.clone());
            return;
        }
        // No guard can be left, and so no error.
        let _ = self.barrier();
        self.stop.store(true, Ordering::SeqCst);
        // For good: a grace period that somebody started must not sleep through its ticks while we wait for the driver.
        self.grace.urgency.begin();
        self.driver.wake();
        self.queues.iter().for_each(|q| q.alarm.wake());
        // The fork handlers walk the table: none may be between its two ends.
        crate::fork::excluded(|| CORES[self.index].store(RESERVED, Ordering::Release));
        self.workers.join();
        CORES[self.index].store(null_mut(), Ordering::Release);
    }

    /// For fork: nobody else registers from now on. Or not for long: what cannot be had within `limit` is left alone.
    pub(crate) fn hold_stashes(&self, limit: Duration) {
        let held = self.intake.hold(self.registry, thread::existing(self.index), limit);
        self.stashes_held.store(held, Ordering::Relaxed);
    }

    pub(crate) fn release_stashes(&self) {
        if self.stashes_held.swap(false, Ordering::Relaxed) {
            self.intake.release(self.registry);
        }
    }

    pub(crate) fn after_fork(&self) {
        self.grace.after_fork();
        self.barrier_lock.reset();
        self.progress.sleepers.store(0, Ordering::Relaxed);
        self.room.sleepers.store(0, Ordering::Relaxed);
        let (own, held) =
            (thread::existing(self.index), self.stashes_held.swap(false, Ordering::Relaxed));
        let recount = self.intake.after_fork(self.registry, own, held);
        self.workers.after_fork();
        self.driver.after_fork();
        self.queues.iter().for_each(|q| q.after_fork(self, recount));
    }
}
/// The sum of a counter over all records.
fn sum(registry: &Registry, counter: impl Fn(&Record) -> &AtomicU64) -> u64 {
    registry.records().map(|r| counter(r).load(Ordering::Relaxed)).sum()
}
