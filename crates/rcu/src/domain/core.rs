// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of a domain share: registry, engine, grace periods, queues, accounts. And the table of all domains, for fork.

use super::driver::Driver;
use super::{Builder, Engine};
use crate::barrier::Kind;
use crate::callback::cap::{self, Cap};
use crate::callback::queue::{Queue, Who};
use crate::callback::{Function, Head, worker};
use crate::engine::{self, Attempt};
use crate::error::Error;
use crate::grace::{Cookie, Grace};
use crate::record::Record;
use crate::registry::Registry;
use crate::restart::arch;
use crate::slots::Protected;
use crate::stats::{self, Stats};
use crate::sync::Lock;
use crate::thread::{self, MAX_DOMAINS, REGISTRIES};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What all users of a domain share. Lives as long as its `Domain` and its workers.
pub(crate) struct Core {
    index: usize,
    registry: &'static Registry,
    pub(super) kind: Engine,
    engine: Box<dyn engine::Engine>,
    pub(super) barrier: Kind,
    pub(crate) grace: Grace,
    grace_stats: stats::Grace,
    pub(crate) callbacks: stats::Callbacks,
    pub(crate) queues: Box<[Queue]>,
    cap: Cap,
    /// Which account registrations use: `callback/list.rs`.
    phase: AtomicU32,
    barrier_lock: Lock,
    pub(super) driver: Driver,
    stop: AtomicBool,
    progress: AtomicU32,
    progress_sleepers: AtomicU32,
    pub(crate) workers: Workers,
    /// Restarts and fallbacks that the records already counted when the domain was built: they outlive domains.
    counted_before: (u64, u64),
}

/// The threads to join when the domain is dropped.
pub(crate) struct Workers(Lock, UnsafeCell<Vec<JoinHandle<()>>>);

// SAFETY: the vector is touched under the lock only.
unsafe impl Sync for Workers {}

impl Workers {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<JoinHandle<()>>) -> R) -> R {
        self.0.lock();
        // SAFETY: under the lock.
        let result = f(unsafe { &mut *self.1.get() });
        self.0.unlock();
        result
    }

    pub(crate) fn add(&self, handle: JoinHandle<()>) {
        self.with(|workers| workers.push(handle));
    }

    /// In the child of a fork: the threads do not exist, nor may their handles be dropped.
    fn after_fork(&self) {
        self.0.reset();
        self.with(|workers| std::mem::forget(std::mem::take(workers)));
    }
}

/// Domains by index. `RESERVED` while one comes or goes.
static CORES: [AtomicPtr<Core>; MAX_DOMAINS] = [const { AtomicPtr::new(null_mut()) }; MAX_DOMAINS];
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
    pub(super) fn new(index: usize, settings: &Builder) -> Core {
        let engine: Box<dyn engine::Engine> = match settings.engine {
            Engine::Restart => Box::new(engine::restart::Restart),
            Engine::Poll => Box::new(engine::poll::Poll),
            Engine::Ltimer { tick } => Box::new(engine::ltimer::Ltimer { tick }),
            Engine::Sched { tick } => Box::new(engine::sched::Sched { tick }),
        };
        // SAFETY: no preconditions. -1 if unknown.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize;
        let registry = &REGISTRIES[index];
        Core {
            index,
            registry,
            kind: settings.engine,
            engine,
            barrier: crate::startup::barrier(settings.engine == Engine::Restart),
            grace: Grace::new(),
            grace_stats: stats::Grace::new(),
            callbacks: stats::Callbacks::new(),
            queues: (0..if settings.single_list { 1 } else { cpus })
                .map(|_| Queue::new())
                .collect(),
            cap: settings.cap,
            phase: AtomicU32::new(0),
            barrier_lock: Lock::new(),
            driver: Driver::new(),
            stop: AtomicBool::new(false),
            progress: AtomicU32::new(0),
            progress_sleepers: AtomicU32::new(0),
            workers: Workers(Lock::new(), UnsafeCell::new(Vec::new())),
            counted_before: (sum(registry, |r| &r.restarts), sum(registry, |r| &r.fallbacks)),
        }
    }

    fn attempt(&self, deadline: Option<Instant>) -> Attempt<'_> {
        Attempt {
            registry: self.registry,
            barrier: self.barrier,
            urgency: &self.grace.urgency,
            deadline,
        }
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

    pub(crate) fn over_cap(&self) -> bool {
        if self.cap == Cap::NONE {
            return false;
        }
        let (mut bytes, mut callbacks) = (0, 0);
        for queue in &self.queues {
            let load = queue.load_unheld();
            bytes += load.bytes();
            callbacks += load.callbacks();
        }
        bytes > self.cap.bytes || callbacks > self.cap.callbacks
    }

    /// Some callbacks have run.
    pub(crate) fn notice_progress(&self) {
        if self.progress_sleepers.load(Ordering::Relaxed) != 0 {
            self.progress.fetch_add(1, Ordering::SeqCst);
            crate::sync::wake_all(&self.progress);
        }
    }

    /// Sleeps until callbacks have run, at most `time`.
    pub(crate) fn await_progress(&self, time: Duration) {
        let progress = self.progress.load(Ordering::SeqCst);
        self.progress_sleepers.fetch_add(1, Ordering::SeqCst);
        crate::sync::wait(&self.progress, progress, Some(time));
        self.progress_sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn ensure_worker(self: &Arc<Core>, index: usize) {
        let started = &self.queues[index].started;
        if !started.load(Ordering::Relaxed)
            && !started.swap(true, Ordering::Relaxed)
            && !worker::start(self, index)
        {
            started.store(false, Ordering::Relaxed);
        }
    }

    /// Registers a callback. See `Domain::call_rcu`.
    pub(super) unsafe fn register(
        self: &Arc<Core>,
        head: *mut Head,
        function: Function,
        node: usize,
        bytes: usize,
        flags: u32,
    ) {
        let units = bytes.div_ceil(16).min(u32::MAX as usize) as u32;
        // SAFETY: the head is the caller's alone.
        unsafe {
            head.write(Head { next: null_mut(), function: Some(function), node, units, flags })
        };
        let index = if self.queues.len() == 1 { 0 } else { current_cpu() % self.queues.len() };
        let queue = &self.queues[index];
        // SAFETY: as above; the caller keeps it valid.
        let (first, load) = unsafe { queue.list.push(head, self.phase.load(Ordering::Relaxed)) };
        self.ensure_worker(index);
        if first || worker::full(load) && load.callbacks() % 64 == 0 {
            queue.wake();
        }
        // Adding all queues up is for now and then. A large node is worth a look of its own.
        if (load.callbacks() % 32 == 0 || bytes >= 1 << 15) && self.over_cap() {
            cap::relieve(self, index);
        }
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
        let result = (0..2).try_for_each(|_| {
            let phase = self.phase.fetch_xor(1, Ordering::SeqCst) as usize & 1;
            self.drain(phase, LOOK)
        });
        self.grace.urgency.end();
        self.barrier_lock.unlock();
        result
    }

    /// Waits until the callbacks of account `phase` have run.
    fn drain(self: &Arc<Core>, phase: usize, look: Duration) -> Result<(), Error> {
        for (index, queue) in self.queues.iter().enumerate() {
            while queue.list.account(phase).callbacks() != 0 {
                self.ensure_worker(index);
                if queue.started.load(Ordering::Relaxed) {
                    queue.wake();
                } else {
                    // The system has no thread for us. The caller waits for the callbacks, whatever they wait for, so it
                    // can as well run them.
                    queue.step(self, Who::Worker);
                }
                self.await_progress(look);
                if self.waits_for_us(Some(phase)) {
                    return Err(Error::Protecting);
                }
            }
        }
        Ok(())
    }

    /// The counters.
    pub(super) fn stats(&self) -> Stats {
        let registry = self.registry;
        let load = self
            .queues
            .iter()
            .map(Queue::load)
            .fold(Default::default(), crate::callback::list::Load::add);
        Stats {
            grace_periods: self.grace_stats.latency(),
            waiting: load.callbacks(),
            waiting_bytes: load.bytes(),
            run: self.callbacks.run.load(Ordering::Relaxed),
            over_cap: self.callbacks.over_cap.load(Ordering::Relaxed),
            helped: self.callbacks.helped.load(Ordering::Relaxed),
            restarts: sum(registry, |r| &r.restarts) - self.counted_before.0,
            fallbacks: sum(registry, |r| &r.fallbacks) - self.counted_before.1,
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
        self.queues.iter().for_each(Queue::wake);
        // The fork handlers walk the table: none may be between its two ends.
        crate::fork::excluded(|| CORES[self.index].store(RESERVED, Ordering::Release));
        for worker in self.workers.with(std::mem::take) {
            // A worker does not panic: callbacks that would unwind abort.
            let _ = worker.join();
        }
        CORES[self.index].store(null_mut(), Ordering::Release);
    }

    pub(crate) fn after_fork(&self) {
        self.grace.after_fork();
        self.barrier_lock.reset();
        self.progress_sleepers.store(0, Ordering::Relaxed);
        self.workers.after_fork();
        self.driver.after_fork();
        self.queues.iter().for_each(|q| q.after_fork(self));
    }
}
/// The sum of a counter over all records.
fn sum(registry: &Registry, counter: impl Fn(&Record) -> &AtomicU64) -> u64 {
    registry.records().map(|r| counter(r).load(Ordering::Relaxed)).sum()
}

fn current_cpu() -> usize {
    match arch::rseq_cs() {
        Some(cs) => arch::current_cpu(cs) as usize,
        // SAFETY: no preconditions. Without the call (-1) everything goes to the first queue.
        None => unsafe { libc::sched_getcpu() }.max(0) as usize,
    }
}
