// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains: readers, grace periods and callbacks that know nothing of other domains'.

use crate::barrier::Kind;
use crate::callback::cap::{self, Cap};
use crate::callback::queue::Queue;
use crate::callback::{Function, Head, LEAF, worker};
use crate::engine::{self, Attempt};
use crate::error::Error;
use crate::grace::{Cookie, Grace};
use crate::guard::{DomainId, Guard, Protected, Qsbr};
use crate::record::Record;
use crate::registry::Registry;
use crate::restart::{self, Lookup, arch};
use crate::slots::Protected as ProtectedSet;
use crate::stats::{self, Stats};
use crate::sync::Lock;
use crate::thread::{self, MAX_DOMAINS, REGISTRIES};
use std::cell::UnsafeCell;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a domain learns that its readers have passed. The documentation of each is in `engine/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// Restartable lookups start over, and only plain sections are waited for.
    #[default]
    Restart,
    /// Ask at once, everywhere, and again: rcu-poll of the FREENIX 2003 paper.
    Poll,
    /// Look on each tick and batch: its rcu-ltimer.
    Ltimer {
        /// Time between two looks.
        tick: Duration,
    },
    /// A token goes from reader to reader: its rcu-sched.
    Sched {
        /// Time between two looks at the token's holder.
        tick: Duration,
    },
}

/// What all users of a domain share. Lives as long as its `Domain` and its workers.
pub(crate) struct Core {
    index: usize,
    registry: &'static Registry,
    kind: Engine,
    engine: Box<dyn engine::Engine>,
    barrier: Kind,
    pub(crate) grace: Grace,
    grace_stats: stats::Grace,
    pub(crate) callbacks: stats::Callbacks,
    pub(crate) queues: Box<[Queue]>,
    cap: Cap,
    /// Which account registrations use: `callback/list.rs`.
    phase: AtomicU32,
    barrier_lock: Lock,
    /// The last cookie that somebody started and will poll for.
    wanted: AtomicU64,
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

/// Makes a domain known to the fork handlers, not in the middle of a fork: they undo what they did to the domains they saw.
fn publish(domain: &Domain) {
    crate::fork::excluded(|| {
        CORES[domain.index].store(Arc::as_ptr(&domain.core).cast_mut(), Ordering::Release)
    });
}

impl Core {
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
    pub(crate) fn scan(&self) -> ProtectedSet {
        ProtectedSet::scan(self.registry.records())
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
            let load = queue.load();
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

    /// Runs the grace periods that were started to be polled for.
    pub(crate) fn drive_wanted(&self) {
        let wanted = Cookie(self.wanted.load(Ordering::Acquire));
        if !self.grace.done(wanted) {
            self.run_until(wanted, None);
        }
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

    /// Registers a callback. See [`Domain::call_rcu`].
    unsafe fn register(
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

    fn barrier(self: &Arc<Core>) {
        self.barrier_lock.lock();
        self.grace.urgency.begin();
        for _ in 0..2 {
            let phase = self.phase.fetch_xor(1, Ordering::SeqCst) as usize & 1;
            for (index, queue) in self.queues.iter().enumerate() {
                while queue.list.account(phase).callbacks() != 0 {
                    self.ensure_worker(index);
                    queue.wake();
                    self.await_progress(Duration::from_millis(1));
                }
            }
        }
        self.grace.urgency.end();
        self.barrier_lock.unlock();
    }

    pub(crate) fn after_fork(&self) {
        self.grace.after_fork();
        self.barrier_lock.reset();
        self.progress_sleepers.store(0, Ordering::Relaxed);
        self.workers.after_fork();
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

/// Settings of a domain, fixed when it is built.
#[derive(Clone, Debug)]
pub struct Builder {
    engine: Engine,
    cap: Cap,
    single_list: bool,
}

impl Builder {
    /// The grace-period engine. Default: [`Engine::Restart`].
    pub fn engine(mut self, engine: Engine) -> Builder {
        self.engine = engine;
        self
    }

    /// The cap on waiting callbacks. Default: [`Cap::default`].
    pub fn cap(mut self, cap: Cap) -> Builder {
        self.cap = cap;
        self
    }

    /// One list and one worker for all CPUs, as in the paper's first version of rcu-poll. For comparison: per-CPU lists are the default.
    pub fn single_list(mut self, single: bool) -> Builder {
        self.single_list = single;
        self
    }

    /// Builds it.
    ///
    /// # Errors
    /// [`Error::TooManyDomains`] if [`MAX_DOMAINS`] exist.
    pub fn build(self) -> Result<Domain, Error> {
        let index = (1..MAX_DOMAINS)
            .find(|&i| {
                CORES[i]
                    .compare_exchange(null_mut(), RESERVED, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            })
            .ok_or(Error::TooManyDomains)?;
        let domain = self.at(index);
        publish(&domain);
        Ok(domain)
    }

    fn at(self, index: usize) -> Domain {
        let engine: Box<dyn engine::Engine> = match self.engine {
            Engine::Restart => Box::new(engine::restart::Restart),
            Engine::Poll => Box::new(engine::poll::Poll),
            Engine::Ltimer { tick } => Box::new(engine::ltimer::Ltimer { tick }),
            Engine::Sched { tick } => Box::new(engine::sched::Sched { tick }),
        };
        // SAFETY: no preconditions. -1 if unknown.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize;
        let registry = &REGISTRIES[index];
        let core = Core {
            index,
            registry,
            kind: self.engine,
            engine,
            barrier: crate::startup::barrier(self.engine == Engine::Restart),
            grace: Grace::new(),
            grace_stats: stats::Grace::new(),
            callbacks: stats::Callbacks::new(),
            queues: (0..if self.single_list { 1 } else { cpus }).map(|_| Queue::new()).collect(),
            cap: self.cap,
            phase: AtomicU32::new(0),
            barrier_lock: Lock::new(),
            wanted: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            progress: AtomicU32::new(0),
            progress_sleepers: AtomicU32::new(0),
            workers: Workers(Lock::new(), UnsafeCell::new(Vec::new())),
            counted_before: (sum(registry, |r| &r.restarts), sum(registry, |r| &r.fallbacks)),
        };
        Domain { index, core: Arc::new(core) }
    }
}

/// Readers and the grace periods and callbacks that wait for them.
///
/// ```
/// use reprieve::{Domain, Engine};
/// let domain = Domain::builder().engine(Engine::Poll).build()?;
/// let reader = domain.read_lock();
/// drop(reader);
/// domain.synchronize();
/// # Ok::<(), reprieve::Error>(())
/// ```
///
/// A guard cannot outlive its domain, nor leave its thread:
///
/// ```compile_fail,E0505
/// let domain = reprieve::Domain::builder().build().unwrap();
/// let guard = domain.read_lock();
/// drop(domain);
/// drop(guard);
/// ```
/// ```compile_fail,E0277
/// let guard = reprieve::read_lock();
/// std::thread::spawn(move || drop(guard));
/// ```
/// ```compile_fail,E0502
/// let domain = reprieve::Domain::global();
/// let mut thread = domain.qsbr();
/// let section = thread.read_lock();
/// thread.quiescent_state();
/// drop(section);
/// ```
pub struct Domain {
    index: usize,
    core: Arc<Core>,
}

/// The default domain, once somebody has asked for it.
static GLOBAL: AtomicPtr<Domain> = AtomicPtr::new(null_mut());

impl Domain {
    /// Settings for a new domain.
    pub fn builder() -> Builder {
        Builder { engine: Engine::default(), cap: Cap::default(), single_list: false }
    }

    /// The default domain: [`Engine::Restart`], default cap. The free functions of the crate use it.
    #[inline]
    pub fn global() -> &'static Domain {
        // SAFETY: null or a domain that is never dropped.
        unsafe { GLOBAL.load(Ordering::Acquire).as_ref() }.unwrap_or_else(Domain::make_global)
    }

    #[cold]
    fn make_global() -> &'static Domain {
        // Not a `OnceLock`: a fork in the middle would leave the child's locked.
        let made = Box::into_raw(Box::new(Domain::builder().at(0)));
        match GLOBAL.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: never dropped from here on.
                let domain = unsafe { &*made };
                publish(domain);
                domain
            }
            // Ours is a leak: it has no threads yet, and this happens once at most per thread.
            // SAFETY: the first is never dropped.
            Err(first) => unsafe { &*first },
        }
    }

    /// What tells this domain from others.
    #[inline(always)]
    pub fn id(&self) -> DomainId {
        DomainId(self.index as u16)
    }

    /// The engine it was built with.
    pub fn engine(&self) -> Engine {
        self.core.kind
    }

    /// Begins a plain section: wait-free, nestable, allowed in signal handlers.
    #[inline(always)]
    pub fn read_lock(&self) -> Guard<'_> {
        Guard::new(self.index)
    }

    /// Puts this thread online: inside a section except at its quiescent states.
    pub fn qsbr(&self) -> Qsbr<'_> {
        Qsbr::new(self.index)
    }

    /// Runs `lookup` in a restartable section if the domain's engine is [`Engine::Restart`] and the system can, else in a plain one. Allowed
    /// in signal handlers.
    ///
    /// # Safety
    /// Everything the lookup can reach is reclaimed through this domain.
    #[inline(always)]
    pub unsafe fn lookup<L: Lookup>(&self, lookup: &L) -> L::Output {
        // SAFETY: the caller's promise.
        unsafe { restart::lookup(self, lookup) }
    }

    /// Like [`lookup`](Domain::lookup), and protects the node found for as long as the returned guard lives. `None` if the lookup returned null.
    ///
    /// # Safety
    /// As for [`lookup`](Domain::lookup). The node is freed through [`retire`](Domain::retire) only, with the
    /// address that the lookup returns; its owner does not write to it while it can be protected, except through shared references.
    #[inline(always)]
    pub unsafe fn protect<T, L: Lookup<Output = *const T>>(
        &self,
        lookup: &L,
    ) -> Option<Protected<'_, T>> {
        // SAFETY: the caller's promise; the node found is in the slot.
        unsafe {
            let (node, slot) = restart::protect(self, lookup);
            NonNull::new(node.cast_mut()).map(|node| Protected::new(node, slot))
        }
    }

    /// Waits until every section that is running now has ended. Shared with all others who wait.
    ///
    /// # Panics
    /// If this thread is itself inside a plain section of the domain: it would wait for ever.
    pub fn synchronize(&self) {
        self.cond_synchronize(self.cookie());
    }

    /// Like [`synchronize`](Domain::synchronize), at the best pace the engine has, whatever its tick.
    ///
    /// # Panics
    /// As [`synchronize`](Domain::synchronize).
    pub fn synchronize_expedited(&self) {
        self.core.grace.urgency.begin();
        // A panic must not leave the domain in a hurry.
        struct End<'a>(&'a Core);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.grace.urgency.end();
            }
        }
        let _end = End(&self.core);
        self.synchronize();
    }

    /// Names the next full grace period without starting it.
    pub fn cookie(&self) -> Cookie {
        self.core.grace.cookie()
    }

    /// Names the next full grace period and has it run in the background.
    pub fn start_poll(&self) -> Cookie {
        let cookie = self.cookie();
        self.core.wanted.fetch_max(cookie.0, Ordering::Release);
        self.core.ensure_worker(0);
        self.core.queues[0].wake();
        cookie
    }

    /// Has it ended?
    #[inline]
    pub fn poll(&self, cookie: Cookie) -> bool {
        self.core.grace.done(cookie)
    }

    /// Waits for it, if it has not ended.
    ///
    /// # Panics
    /// As [`synchronize`](Domain::synchronize).
    pub fn cond_synchronize(&self, cookie: Cookie) {
        if self.poll(cookie) {
            return;
        }
        assert!(
            !self.core.in_section(),
            "a thread waits for a grace period inside a read-side section of the same domain"
        );
        self.core.run_until(cookie, None);
    }

    /// Has `function(head)` called once every section running now has ended. Returns without waiting for anything while the domain is below its
    /// [`Cap`]; beyond it the caller may be made to wait some milliseconds, and to free memory of [`retire`](Domain::retire) calls. Not for
    /// signal handlers.
    ///
    /// `bytes`: what the callback will free, for the cap.
    ///
    /// # Safety
    /// `head` is not registered already, and valid until `function` is called; the function may be called on another thread, and does not unwind.
    pub unsafe fn call_rcu(&self, head: *mut Head, function: Function, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.core.register(head, function, 0, bytes, 0) }
    }

    /// Like [`call_rcu`](Domain::call_rcu), and waits moreover until no [`Protected`] guard holds `node`.
    ///
    /// `leaf`: the function does nothing but free memory: it takes no lock that a caller of `retire` may hold, and calls
    /// nothing of this crate. Such callbacks may run in any thread that registers one beyond the cap.
    ///
    /// # Safety
    /// As for [`call_rcu`](Domain::call_rcu); `node` is the address that lookups of `protect` return, and can no longer be found by new
    /// ones.
    pub unsafe fn retire(
        &self,
        node: *const (),
        head: *mut Head,
        function: Function,
        bytes: usize,
        leaf: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.core.register(head, function, node.addr(), bytes, if leaf { LEAF } else { 0 })
        }
    }

    /// Drops `value` after a grace period in which no guard holds its address.
    ///
    /// # Safety
    /// The value can no longer be found by new sections.
    pub unsafe fn retire_box<T: Send + 'static>(&self, value: Box<T>) {
        #[repr(C)]
        struct Retired<T>(Head, *mut T);
        unsafe extern "C" fn free<T>(head: *mut Head) {
            // SAFETY: `head` is the first field of the allocation made below, whose value nobody refers to any more. A
            // panicking destructor aborts, as this is not an unwinding ABI.
            unsafe {
                let retired = Box::from_raw(head.cast::<Retired<T>>());
                drop(Box::from_raw(retired.1));
            }
        }
        let bytes = size_of::<T>() + size_of::<Retired<T>>();
        let value = Box::into_raw(value);
        let retired = Box::into_raw(Box::new(Retired(Head::new(), value)));
        let leaf = !std::mem::needs_drop::<T>();
        // SAFETY: the head is the first field of the allocation, fresh, and freed by `free`.
        unsafe { self.retire(value.cast_const().cast(), retired.cast(), free::<T>, bytes, leaf) };
    }

    /// Calls `f` after a grace period, on a worker thread.
    pub fn defer(&self, f: impl FnOnce() + Send + 'static) {
        #[repr(C)]
        struct Deferred<F>(Head, F);
        unsafe extern "C" fn call<F: FnOnce()>(head: *mut Head) {
            // SAFETY: `head` is the first field of the allocation made below.
            let deferred = unsafe { Box::from_raw(head.cast::<Deferred<F>>()) };
            (deferred.1)();
        }
        fn register<F: FnOnce() + Send + 'static>(domain: &Domain, f: F) {
            let head = Box::into_raw(Box::new(Deferred(Head::new(), f)));
            // SAFETY: the head is fresh, heads its allocation, and is freed by `call`.
            unsafe { domain.call_rcu(head.cast(), call::<F>, size_of::<Deferred<F>>()) };
        }
        register(self, f);
    }

    /// Waits until every callback registered before has run. A callback that waits for a protected node is waited for, too.
    ///
    /// # Errors
    /// [`Error::InCallback`] when called by a callback, which would wait for itself.
    ///
    /// # Panics
    /// As [`synchronize`](Domain::synchronize).
    pub fn barrier(&self) -> Result<(), Error> {
        if thread::in_callback() {
            return Err(Error::InCallback);
        }
        assert!(
            !self.core.in_section(),
            "a thread waits for callbacks inside a read-side section of the same domain"
        );
        self.core.barrier();
        Ok(())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let registry = self.core.registry;
        let load = self
            .core
            .queues
            .iter()
            .map(Queue::load)
            .fold(Default::default(), crate::callback::list::Load::add);
        Stats {
            grace_periods: self.core.grace_stats.latency(),
            waiting: load.callbacks(),
            waiting_bytes: load.bytes(),
            run: self.core.callbacks.run.load(Ordering::Relaxed),
            over_cap: self.core.callbacks.over_cap.load(Ordering::Relaxed),
            helped: self.core.callbacks.helped.load(Ordering::Relaxed),
            restarts: sum(registry, |r| &r.restarts) - self.core.counted_before.0,
            fallbacks: sum(registry, |r| &r.fallbacks) - self.core.counted_before.1,
            threads: registry.records().filter(|r| r.owner() != 0).count() as u64,
        }
    }
}

impl restart::Place for &Domain {
    #[inline(always)]
    fn index(&self) -> usize {
        self.index
    }

    fn may_restart(&self) -> bool {
        self.core.barrier == Kind::Restart
    }
}

/// The default domain, whose index is a constant.
pub(crate) struct Global;

impl restart::Place for Global {
    #[inline(always)]
    fn index(&self) -> usize {
        0
    }

    fn may_restart(&self) -> bool {
        Domain::global().core.barrier == Kind::Restart
    }
}

/// Waits for the callbacks, then stops the workers. Guards of the domain are gone, except leaked ones, whose sections and protections end here.
impl Drop for Domain {
    fn drop(&mut self) {
        // No guard can be alive: they borrow the domain.
        self.core.registry.records().for_each(|r| r.reset());
        if thread::in_callback() {
            // A worker cannot wait for itself. The domain stays, as a leak.
            std::mem::forget(self.core.clone());
            return;
        }
        self.core.barrier();
        self.core.stop.store(true, Ordering::SeqCst);
        self.core.queues.iter().for_each(Queue::wake);
        // The fork handlers walk the table: none may be between its two ends.
        crate::fork::excluded(|| CORES[self.index].store(RESERVED, Ordering::Release));
        let workers = self.core.workers.with(std::mem::take);
        for worker in workers {
            // A worker does not panic: callbacks that would unwind abort.
            let _ = worker.join();
        }
        CORES[self.index].store(null_mut(), Ordering::Release);
    }
}
