// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains as programs use them: readers, grace periods and callbacks that know nothing of other
//! domains. The default domain, the table of all, and what a fork does with them.
//!
//! Stands on all folders below: `callback`, `grace`, `read`, `thread`, `platform`. It adds no
//! protocol of its own but the table's, which is changed while forks are kept out.

pub(crate) mod builder;
pub(crate) mod default;
pub(crate) mod end;
mod fork;
pub(crate) mod table;

pub use builder::{Builder, Engine};

use crate::callback::limits::Cap;
use crate::callback::reclaimer::Reclaimer;
use crate::error::Error;
use crate::grace::sequence::GpSeq;
use crate::grace::stats::Stats;
use crate::grace::watch::Stall;
use crate::platform::annotate;
use crate::platform::barrier::Kind;
use crate::read::guard::{Guard, Qsbr};
use crate::read::protected::Protected;
use crate::read::restart::traversal::Traversal;
use crate::read::restart::{self, Lookup};
use crate::thread;
use crate::thread::head::{Function, Head, LEAF};
use crate::thread::id::DomainId;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

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
    id: DomainId,
    engine: Engine,
    reclaimer: Arc<Reclaimer>,
}

/// Names a grace period of a domain that has not ended yet when the cookie is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    domain: DomainId,
    end: GpSeq,
}

/// The C interface passes cookies as numbers.
impl Cookie {
    pub(crate) fn number(self) -> u64 {
        self.end.0
    }

    pub(crate) fn from_number(domain: DomainId, number: u64) -> Cookie {
        Cookie { domain, end: GpSeq(number) }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn foreign(cookie: DomainId, domain: DomainId) -> ! {
    panic!("a cookie of {cookie} is of no use in {domain}");
}

impl Domain {
    /// Settings for a new domain.
    pub fn builder() -> Builder {
        Builder {
            engine: Engine::default(),
            cap: Cap::default(),
            soft_cap: Cap::SOFT,
            single_list: false,
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn reclaimer(&self) -> &Arc<Reclaimer> {
        &self.reclaimer
    }

    /// The id that tells this domain from others.
    #[inline(always)]
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// The engine it was built with.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// A grace period at once, if grace periods are quick now and no reader is inside a plain
    /// section. Waits for nobody; false if there was none.
    pub(crate) fn try_grace_period(&self) -> bool {
        self.reclaimer.grace.quick() && self.reclaimer.grace.quick_grace_period()
    }

    /// Begins a plain section: wait-free, nestable, allowed in signal handlers.
    #[inline(always)]
    pub fn read_lock(&self) -> Guard<'_> {
        Guard::new(self.id)
    }

    /// Puts this thread online: inside a section except at its quiescent states.
    pub fn qsbr(&self) -> Qsbr<'_> {
        Qsbr::new(self.id)
    }

    /// Runs `lookup` in a restartable section if the domain's engine is [`Engine::Restart`] and the
    /// system can, else in a plain one. Allowed in signal handlers.
    ///
    /// # Safety
    /// Everything the lookup can reach is reclaimed through this domain.
    #[inline(always)]
    pub unsafe fn lookup<L: Lookup>(&self, lookup: &L) -> L::Output {
        // SAFETY: the caller's promise.
        unsafe { restart::lookup(self, lookup) }
    }

    /// Like [`lookup`](Domain::lookup), and protects the node found for as long as the returned
    /// guard lives. `None` if the lookup returned null.
    ///
    /// # Safety
    /// As for [`lookup`](Domain::lookup). The node is freed through [`retire`](Domain::retire)
    /// only, with the address that the lookup returns; its owner does not write to it while it can
    /// be protected, except through shared references. Threads that protect it at the same time
    /// share it: they use no more of `T` than several threads may at once (all of it if `T` is
    /// `Sync`).
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

    /// Runs a traversal of any length to its end and protects the node that it finds. Grace periods
    /// wait for none of it: it goes on from where it was, in [parts](Traversal::part).
    ///
    /// ```
    /// use reprieve::{Domain, Part, Section, Traversal};
    /// use std::ptr::null_mut;
    /// use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
    ///
    /// struct Node { key: u64, unlinked: AtomicU64, next: AtomicPtr<Node> }
    /// struct Find<'a> { list: &'a AtomicPtr<Node>, key: u64 }
    ///
    /// // SAFETY: loads through the section, in line; writers set `unlinked` before they retire.
    /// unsafe impl Traversal for Find<'_> {
    ///     type Node = Node;
    ///     #[inline(always)]
    ///     unsafe fn part(&self, section: &Section, from: *const Node, steps: usize) -> Part<Node> {
    ///         unsafe {
    ///             let mut next = if from.is_null() {
    ///                 section.follow(self.list)
    ///             } else if section.read((&raw const (*from).unlinked).cast::<u64>()) != 0 {
    ///                 return Part::lost();
    ///             } else {
    ///                 section.follow(&(*from).next)
    ///             };
    ///             let mut left = steps;
    ///             while let Some(node) = next {
    ///                 let node = node.as_ptr();
    ///                 if section.read(&raw const (*node).key) == self.key {
    ///                     return Part::found(node);
    ///                 }
    ///                 left -= 1;
    ///                 if left == 0 {
    ///                     return Part::reached(node);
    ///                 }
    ///                 next = section.follow(&(*node).next);
    ///             }
    ///             Part::end()
    ///         }
    ///     }
    /// }
    ///
    /// let domain = Domain::global();
    /// let list = AtomicPtr::new(null_mut());
    /// for key in 0..10_000 {
    ///     let (unlinked, next) = (AtomicU64::new(0), AtomicPtr::new(list.load(Relaxed)));
    ///     list.store(Box::into_raw(Box::new(Node { key, unlinked, next })), Release);
    /// }
    /// // SAFETY: nodes are reclaimed through the default domain only, by `retire_box`.
    /// unsafe {
    ///     let last = domain.traverse(&Find { list: &list, key: 0 }).unwrap();
    ///     let first = list.load(Relaxed);
    ///     list.store((*first).next.load(Relaxed), Release);
    ///     (*first).unlinked.store(1, Release);
    ///     domain.retire_box(Box::from_raw(first));
    ///     assert!(domain.traverse(&Find { list: &list, key: 9_999 }).is_none());
    ///     assert_eq!(last.key, 0);
    /// }
    /// ```
    ///
    /// # Safety
    /// As for [`protect`](Domain::protect), for each node that a part has found or reached.
    pub unsafe fn traverse<T: Traversal>(&self, traversal: &T) -> Option<Protected<'_, T::Node>> {
        // SAFETY: the caller's promise; the node found is in the slot.
        unsafe {
            let (node, slot) = restart::traversal::traverse(self, traversal)?;
            Some(Protected::new(node, slot))
        }
    }

    /// Waits until every section that is running now has ended. Shared with all others who wait.
    ///
    /// Protected references are not waited for: a node that one may hold is not freed after this
    /// but handed to [`retire`](Domain::retire).
    ///
    /// # Panics
    /// If this thread is itself inside a plain section of the domain: it would wait for ever.
    pub fn synchronize(&self) {
        self.cond_synchronize(self.cookie());
    }

    /// Like [`synchronize`](Domain::synchronize), at the best pace the engine has, whatever its
    /// tick.
    ///
    /// # Panics
    /// As [`synchronize`](Domain::synchronize).
    pub fn synchronize_expedited(&self) {
        self.reclaimer.grace.urgency.begin();
        // A panic must not leave the domain in a hurry.
        struct End<'a>(&'a Reclaimer);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.grace.urgency.end();
            }
        }
        let _end = End(&self.reclaimer);
        self.synchronize();
    }

    /// Names the next full grace period without starting it.
    pub fn cookie(&self) -> Cookie {
        Cookie { domain: self.id, end: self.reclaimer.grace.cookie() }
    }

    /// Panics rather than take one domain's grace period for another's, and free too early.
    #[inline]
    #[track_caller]
    fn end(&self, cookie: Cookie) -> GpSeq {
        if cookie.domain != self.id {
            foreign(cookie.domain, self.id);
        }
        cookie.end
    }

    /// Names the next full grace period and has it run in the background, by a thread that the
    /// domain keeps for this.
    pub fn start_poll(&self) -> Cookie {
        let cookie = self.cookie();
        self.reclaimer.start_background(cookie.end);
        cookie
    }

    /// Has it ended? Of use anywhere, in a callback too. (Where the system has no thread for grace
    /// periods in the background, a poll for one that was started spends up to a millisecond on
    /// it.)
    ///
    /// # Panics
    /// If the cookie is of another domain, whose grace periods say nothing about this one's
    /// readers.
    #[inline]
    #[track_caller]
    pub fn poll(&self, cookie: Cookie) -> bool {
        let end = self.end(cookie);
        self.reclaimer.grace.done(end) || self.reclaimer.poll_background(end)
    }

    /// Waits for it, if it has not ended.
    ///
    /// # Panics
    /// As [`synchronize`](Domain::synchronize), and as [`poll`](Domain::poll).
    #[track_caller]
    pub fn cond_synchronize(&self, cookie: Cookie) {
        let end = self.end(cookie);
        if self.reclaimer.grace.done(end) {
            return;
        }
        assert!(
            !self.reclaimer.grace.in_section(),
            "a thread waits for a grace period inside a read-side section of the same domain"
        );
        self.reclaimer.grace.run_until(end, None);
    }

    /// Has `function(head)` called once every section running now has ended. Returns without
    /// waiting for anything while the domain is below its soft [`Cap`]; beyond it the caller may be
    /// made to free memory of [`retire`](Domain::retire) calls, beyond the cap to wait some
    /// milliseconds. Not for signal handlers.
    ///
    /// `bytes`: what the callback will free, for the cap.
    ///
    /// # Safety
    /// `head` is not registered already, and valid until `function` is called; the function may be
    /// called on another thread, and does not unwind.
    pub unsafe fn call_rcu(&self, head: *mut Head, function: Function, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.reclaimer.register(head, function, 0, bytes, 0) }
    }

    /// Like [`call_rcu`](Domain::call_rcu), and waits moreover until no [`Protected`] guard holds
    /// `node`.
    ///
    /// `leaf`: the function does nothing but free memory: it takes no lock that a caller of
    /// `retire` may hold, and calls nothing of this crate. Such callbacks may run in any thread
    /// that registers one beyond the cap.
    ///
    /// # Safety
    /// As for [`call_rcu`](Domain::call_rcu); `node` is the address that lookups of `protect`
    /// return, and can no longer be found by new ones.
    pub unsafe fn retire(
        &self,
        node: *const (),
        head: *mut Head,
        function: Function,
        bytes: usize,
        leaf: bool,
    ) {
        annotate::release(annotate::clock());
        // SAFETY: the caller's promise.
        unsafe {
            self.reclaimer.register(head, function, node.addr(), bytes, if leaf { LEAF } else { 0 })
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
            // SAFETY: `head` is the first field of the allocation made below, whose value nobody
            // refers to any more. A panicking destructor aborts, as this is not an unwinding ABI.
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

    /// Waits until every callback registered before has run, except those whose node a
    /// [`Protected`] guard holds. [`Stats::held`] counts those. Each runs when its guard is gone.
    /// Waits for some that are registered meanwhile, too.
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
            !self.reclaimer.grace.in_section(),
            "a thread waits for callbacks inside a read-side section of the same domain"
        );
        self.reclaimer.barrier();
        Ok(())
    }

    /// Has readers reported that hold a grace period up for longer than `timeout`; `None`: none
    /// are. Default: 10 s.
    ///
    /// The report goes to standard error, or to the hook of [`on_stall`](Domain::on_stall), and is
    /// repeated after three times the time, as long as the grace period lasts. It is made by
    /// whoever waits for the grace period: where nobody waits there is no report.
    pub fn set_stall_timeout(&self, timeout: Option<Duration>) {
        self.reclaimer.grace.watch.set_timeout(timeout);
    }

    /// Has stall reports, and those of dead readers, passed to `hook` instead of printed.
    ///
    /// The hook runs on the thread that leads the grace period (a caller of
    /// [`synchronize`](Domain::synchronize), or one of the domain's own), which goes on when it
    /// returns: it must not wait for grace periods or callbacks of the domain, as dropping the
    /// domain does, nor for locks that somebody may hold who does. A hook that is replaced is freed
    /// with the domain.
    ///
    /// ```
    /// use reprieve::{Domain, watch::State};
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use std::time::Duration;
    ///
    /// let domain = Arc::new(Domain::builder().build()?);
    /// domain.set_stall_timeout(Some(Duration::from_millis(50)));
    /// let thread = Arc::new(AtomicU64::new(0));
    /// let reported = thread.clone();
    /// domain.on_stall(move |stall| {
    ///     let laggard = &stall.laggards[0];
    ///     assert!(laggard.waiting >= Duration::from_millis(50) && laggard.state != State::Running);
    ///     reported.store(laggard.thread.into(), Ordering::SeqCst);
    /// });
    /// let reader = std::thread::spawn({
    ///     let (domain, thread) = (domain.clone(), thread.clone());
    ///     move || {
    ///         let _guard = domain.read_lock();
    ///         while thread.load(Ordering::SeqCst) == 0 {
    ///             std::thread::sleep(Duration::from_millis(5));
    ///         }
    ///     }
    /// });
    /// while domain.stats().stalls == 0 {
    ///     domain.synchronize();
    /// }
    /// reader.join().unwrap();
    /// # Ok::<(), reprieve::Error>(())
    /// ```
    pub fn on_stall(&self, hook: impl Fn(&Stall) + Send + Sync + 'static) {
        self.reclaimer.grace.watch.set_hook(Some(Box::new(hook)));
    }

    /// For whom the grace period in progress waits, if it has for longer than `longer_than`. To
    /// within a tenth of a second; `None` if none is in progress.
    pub fn stalled(&self, longer_than: Duration) -> Option<Stall> {
        self.reclaimer.grace.stalled(longer_than)
    }

    /// Has stall reports printed again.
    pub fn print_stalls(&self) {
        self.reclaimer.grace.watch.set_hook(None);
    }

    /// Whether grace periods forget readers whose threads are dead, and go on. Default: yes. A
    /// thread that exits or is cancelled ends its sections itself, except those of leaked guards,
    /// which nobody ends; this is about those killed by a bare `exit` system call, and about
    /// threads that the C library does not know. References from their guards must not be in use.
    pub fn set_forget_dead(&self, forget: bool) {
        self.reclaimer.grace.watch.set_forget_dead(forget);
    }

    /// Looks for dead threads among all that are registered, and gives up their sections, protected
    /// nodes and places (not those of guards that a thread leaked). Returns how many there were.
    /// (Grace periods do so for those that they wait for; nodes that a dead thread protected wait
    /// for this call.)
    pub fn forget_dead_threads(&self) -> usize {
        self.reclaimer.grace.forget_dead_threads()
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        self.reclaimer.stats()
    }
}

impl restart::LookupDomain for &Domain {
    const DEFAULT: bool = false;

    #[inline(always)]
    fn index(&self) -> usize {
        self.id.index()
    }

    fn may_restart(&self) -> bool {
        self.reclaimer.grace.barrier == Kind::Restart
    }
}

/// Waits for the callbacks, then stops the workers. Guards of the domain are gone, except leaked
/// ones, whose sections and protections end here.
///
/// In a callback, of whatever domain, it returns at once, and a thread that is started for it does
/// all that. (If the system refuses a thread the domain is leaked, with the callbacks that wait.)
impl Drop for Domain {
    fn drop(&mut self) {
        end::end(&self.reclaimer);
    }
}
