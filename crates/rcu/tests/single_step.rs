// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread dies, or forks, between any two instructions of a registration: it is single-stepped,
//! and the handler of the trap does it.
//!
//! Instructions are tried in an order that covers the registration evenly, as many as fit into a
//! time (see `common/samples.rs`): all of them in an optimized build.
#![cfg(target_arch = "x86_64")]

mod common {
    pub mod samples;
}

use common::samples::{Samples, spread};
use reprieve::{Cap, Domain, Head};
use std::arch::asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Tests run one at a time: a fork in one keeps the registrations of all out of their stashes.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The least number of threads that die, or fork, in each series.
const LEAST: u64 = 24;

const TRAP_FLAG: i64 = 0x100;

thread_local! {
    /// Instructions until `ACTION`.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static ACTION: Cell<Option<fn()>> = const { Cell::new(None) };
}

extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    LEFT.set(LEFT.get().saturating_sub(1));
    if LEFT.get() == 0 {
        // SAFETY: the context of this signal.
        let flags = unsafe {
            &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize]
        };
        *flags &= !TRAP_FLAG;
        if let Some(action) = ACTION.take() {
            action();
        }
    }
}

/// Runs `f`, and `action` in a handler after that many instructions of it. False if there were
/// fewer. `f` blocks no signals and starts no thread.
fn stepped(instructions: u64, action: fn(), f: impl FnOnce()) -> bool {
    // SAFETY: the handler is for traps, which only this file makes.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = trapped;
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &new, std::ptr::null_mut()), 0);
    }
    LEFT.set(instructions);
    ACTION.set(Some(action));
    // SAFETY: sets a flag that makes a signal of each instruction, and clears it.
    unsafe {
        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
        f();
        asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq");
    }
    ACTION.take().is_none()
}

/// The number of instructions of `f`.
fn count_instructions(f: impl FnOnce()) -> u64 {
    assert!(!stepped(u64::MAX, || unreachable!(), f));
    u64::MAX - LEFT.get()
}

#[repr(C)]
struct Callback {
    head: Head,
    ran: AtomicU32,
}

unsafe extern "C" fn run(head: *mut Head) {
    // SAFETY: the head is the first field of a callback, none of which is ever freed.
    unsafe { &*head.cast::<Callback>() }.ran.fetch_add(1, SeqCst);
}

/// Whether callbacks are mere frees: a thread that registers many helps now and then, whatever the
/// cap. With other callbacks each registration has the same instructions.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Free,
    Other,
}

/// Callbacks to be registered one after the other.
struct Callbacks(Vec<*mut Callback>, Kind);

// SAFETY: the callbacks are never freed; those who share this register each of them once.
unsafe impl Sync for Callbacks {}
// SAFETY: as above.
unsafe impl Send for Callbacks {}

impl Callbacks {
    fn new(n: usize, kind: Kind) -> Callbacks {
        let new =
            || Box::into_raw(Box::new(Callback { head: Head::new(), ran: AtomicU32::new(0) }));
        Callbacks((0..n).map(|_| new()).collect(), kind)
    }

    fn register(&self, domain: &Domain, i: usize) {
        self.register_as(domain, i, run);
    }

    fn register_as(&self, domain: &Domain, i: usize, function: reprieve::Function) {
        let free = self.1 == Kind::Free;
        // SAFETY: once, and never freed.
        unsafe { domain.retire(std::ptr::null(), self.0[i].cast(), function, 16, free) };
    }

    fn ran(&self) -> impl Iterator<Item = u32> {
        // SAFETY: never freed.
        self.0.iter().map(|&callback| unsafe { &*callback }.ran.load(SeqCst))
    }
}

/// A domain whose only worker has been started.
fn domain(soft: u64) -> Arc<Domain> {
    let soft = Cap { bytes: u64::MAX, callbacks: soft };
    let domain = Domain::builder().single_list(true).soft_cap(soft).build().unwrap();
    domain.defer(|| ());
    domain.barrier().unwrap();
    Arc::new(domain)
}

/// Keeps a domain's only worker in a callback until this is dropped. Meanwhile it takes nothing out
/// of the stashes, so each registration has the same instructions.
struct WorkerHeld(#[expect(dead_code, reason = "its drop is what counts")] mpsc::Sender<()>);

fn hold_worker(domain: &Domain) -> WorkerHeld {
    let (tell, told) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    domain.defer(move || {
        tell.send(()).unwrap();
        // An error: the sender is gone.
        let _ = released.recv();
    });
    told.recv().unwrap();
    WorkerHeld(release)
}

fn barrier(domain: &Arc<Domain>, when: &str) {
    // On a thread of its own, whose stash is empty.
    let waited = domain.clone();
    // A thread that comes or goes during a fork has a lock of the standard library's, which the
    // child needs to start one: hence the join.
    assert_eq!(thread::spawn(move || waited.barrier()).join().unwrap(), Ok(()), "{when}");
    assert_eq!(domain.stats().waiting, 0, "{when}");
}

fn die() {
    // SAFETY: ends the thread, which the test is about.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Runs `f` on a thread that may be killed by [`die`]. Whether it was.
fn on_a_mortal_thread(f: impl FnOnce() + Send) -> bool {
    struct Start<F>(Option<F>, bool);
    extern "C" fn start<F: FnOnce()>(argument: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the argument of pthread_create below, which waits for us.
        let start = unsafe { &mut *argument.cast::<Start<F>>() };
        start.0.take().unwrap()();
        start.1 = true;
        std::ptr::null_mut()
    }
    fn spawn<F: FnOnce() + Send>(f: F) -> bool {
        let mut argument = Start(Some(f), false);
        let pointer: *mut Start<F> = &mut argument;
        // SAFETY: the argument outlives the thread.
        unsafe {
            let mut thread = std::mem::zeroed();
            let created =
                libc::pthread_create(&mut thread, std::ptr::null(), start::<F>, pointer.cast());
            assert_eq!(created, 0);
            libc::pthread_join(thread, std::ptr::null_mut());
            !(*pointer).1
        }
    }
    spawn(f)
}

/// Returns when one more than `before` has been forgotten: by this thread, or by a worker that came
/// first.
fn forget_the_dead(domain: &Domain, before: u64) {
    // The join may come a moment before the kernel has let the thread go.
    while domain.stats().forgotten == before {
        domain.forget_dead_threads();
        thread::yield_now();
    }
}

/// Whether grace periods take so long here that registrations leave all of them to the workers.
fn too_slow_to_help(domain: &Domain) -> bool {
    /// The library's limit.
    const QUICK: Duration = Duration::from_micros(250);
    let found = domain.stats().grace_periods;
    let slow = found.count >= 20 && found.quantile(0.25) > QUICK;
    if slow {
        println!("SKIPPED: grace periods take long here, so registrations do not help with them");
    }
    slow
}

/// Whether the worker goes on with its work while a thread registers and dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Worker {
    Held,
    Works,
}

/// The number of instructions of a registration after `n` others.
fn length(domain: &Arc<Domain>, n: usize) -> u64 {
    let callbacks = Callbacks::new(n + 1, Kind::Other);
    let held = hold_worker(domain);
    let length = thread::scope(|scope| {
        let registration = || {
            drop(domain.read_lock());
            (0..n).for_each(|i| callbacks.register(domain, i));
            count_instructions(|| callbacks.register(domain, n))
        };
        scope.spawn(registration).join().unwrap()
    });
    drop(held);
    barrier(domain, "after a count of instructions");
    assert!(callbacks.ran().all(|ran| ran == 1));
    length
}

/// A thread registers `n` callbacks and dies in the next registration, after that many
/// instructions. Whether it did; and how many callbacks were lost with it.
fn killed_in_a_registration(
    domain: &Arc<Domain>,
    n: usize,
    instructions: u64,
    worker: Worker,
    kind: Kind,
) -> (bool, usize) {
    let callbacks = Callbacks::new(n + 1, kind);
    let forgotten = domain.stats().forgotten;
    let held = (worker == Worker::Held).then(|| hold_worker(domain));
    let died = on_a_mortal_thread(|| {
        drop(domain.read_lock());
        (0..n).for_each(|i| callbacks.register(domain, i));
        stepped(instructions, die, || callbacks.register(domain, n));
    });
    drop(held);
    if died {
        forget_the_dead(domain, forgotten);
    }
    if worker == Worker::Works {
        // The worker sleeps, and the dead thread may have been about to wake it. The next
        // registration that finds its stash full, or closed, wakes it, or the test hangs.
        let next = Callbacks::new(65, kind);
        let register = || (0..65).for_each(|i| next.register(domain, i));
        thread::scope(|scope| scope.spawn(register).join().unwrap());
        while next.ran().any(|ran| ran == 0) {
            thread::sleep(Duration::from_micros(100));
        }
    }
    barrier(domain, &format!("{n} callbacks, {instructions} instructions into the next"));
    assert!(callbacks.ran().all(|ran| ran <= 1));
    (died, callbacks.ran().filter(|&ran| ran == 0).count())
}

/// The registration goes into a stash that is open, one that is full, none that is open yet. While
/// the worker is held each thread dies at the instruction that was meant; while it works the stash
/// may be empty, or taken away, at any moment.
#[test]
fn a_thread_that_dies_in_a_registration_loses_no_more_than_it_has_in_hand() {
    let _one = one();
    let domain = domain(1 << 14);
    for (n, worker) in [5, 64, 0].into_iter().flat_map(|n| [(n, Worker::Held), (n, Worker::Works)])
    {
        let length = length(&domain, n);
        let samples = Samples::new(
            format!("{length} instructions after {n} callbacks, worker {worker:?}"),
            LEAST,
        );
        let (mut first, mut many) = (None, 0);
        for instructions in spread(length).take_while(|_| samples.go_on()) {
            let (died, lost) =
                killed_in_a_registration(&domain, n, instructions, worker, Kind::Other);
            if died {
                samples.take();
                first.get_or_insert(lost);
                many += u64::from(lost > 1);
            } else {
                // The stash was open this time, which takes fewer instructions than to open it.
                assert!(worker == Worker::Works && lost == 0, "{n}: {instructions} of {length}");
            }
        }
        // Its own callback, until it is in the stash, or on the list. And for some instructions
        // what goes from the stash to the list.
        assert_eq!(first, Some(1), "{n}, {worker:?}");
        assert!(many == 0 || n == 64 && many < samples.taken() / 2, "{n}: {many}");
        samples.end();
    }
}

/// A registration beyond the soft cap helps: it makes a grace period and runs callbacks. It has
/// more of them in hand, and so more are lost.
#[test]
fn a_thread_that_dies_while_it_helps() {
    /// More instructions than such a registration has.
    const LONGEST: u64 = if cfg!(debug_assertions) { 1 << 13 } else { 1 << 10 };
    let _one = one();
    let domain = domain(256);
    let helped = domain.stats().helped;
    let next = |n: &u64| Some(n + 1 + n / 24).filter(|&n| n < LONGEST);
    let moments: Vec<u64> = std::iter::successors(Some(1), next).collect();
    let all = moments.len() as u64;
    let samples = Samples::new(format!("{all} moments of registrations that help"), 40);
    // Again from the start if none of them helped.
    for (i, at) in (0..).zip(spread(all).cycle()) {
        let none_helped = domain.stats().helped == helped;
        if !(samples.go_on() && i < all || none_helped && !too_slow_to_help(&domain)) {
            break;
        }
        let instructions = moments[at as usize - 1];
        let n = 232 + i as usize * 5 % 24;
        if killed_in_a_registration(&domain, n, instructions, Worker::Works, Kind::Free).0 {
            samples.take();
        }
    }
    samples.end();
}

/// `barrier` and the drop of a domain look for dead threads themselves: the program need not call
/// `forget_dead_threads`.
#[test]
fn barrier_looks_for_dead_owners() {
    let _one = one();
    let registration = |domain: &Arc<Domain>, callbacks: &Callbacks| {
        (0..2).for_each(|i| callbacks.register(domain, i));
    };
    let length = {
        let (domain, callbacks) = (domain(1 << 14), Callbacks::new(3, Kind::Other));
        let _held = hold_worker(&domain);
        thread::scope(|scope| {
            let registration = || {
                registration(&domain, &callbacks);
                count_instructions(|| callbacks.register(&domain, 2))
            };
            scope.spawn(registration).join().unwrap()
        })
    };
    let killed = |domain: &Arc<Domain>, instructions| {
        let callbacks = Callbacks::new(3, Kind::Other);
        let _held = hold_worker(domain);
        assert!(on_a_mortal_thread(|| {
            registration(domain, &callbacks);
            stepped(instructions, die, || callbacks.register(domain, 2));
        }));
        callbacks
    };
    let all_but_one_ran = |callbacks: &Callbacks| callbacks.ran().take(2).all(|ran| ran == 1);
    let samples = Samples::new(format!("deaths inside a stash, in {length} instructions"), 4);
    for instructions in spread(length).take_while(|_| samples.go_on()) {
        let first = domain(1 << 14);
        let callbacks = killed(&first, instructions);
        barrier(&first, "a dead owner");
        assert!(all_but_one_ran(&callbacks));
        // Otherwise the owner died before it was inside its stash, or after.
        if first.stats().forgotten == 1 {
            samples.take();
            let second = domain(1 << 14);
            let callbacks = killed(&second, instructions);
            drop(Arc::into_inner(second).unwrap());
            assert!(all_but_one_ran(&callbacks));
        }
    }
    samples.end();
}

/// A leaf callback that ends its thread when it is run from the stash, in the middle of a
/// registration.
#[test]
fn a_thread_that_dies_in_a_callback_of_its_stash() {
    let _one = one();
    unsafe extern "C" fn exit(_: *mut Head) {
        let mut name = [0u8; 16];
        // SAFETY: room for a name.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        // The worker may be first to run it: it goes on.
        if !name.starts_with(b"reprieve-cb") {
            die();
        }
    }
    let domain = domain(256);
    let mut deaths = 0;
    while deaths < 3 && !too_slow_to_help(&domain) {
        let callbacks = Callbacks::new(1000, Kind::Free);
        let forgotten = domain.stats().forgotten;
        let died = on_a_mortal_thread(|| {
            for i in 0..1000 {
                callbacks.register_as(&domain, i, if i % 100 == 99 { exit } else { run });
            }
        });
        deaths += died as u32;
        if died {
            forget_the_dead(&domain, forgotten);
        }
        barrier(&domain, "a thread died in a callback");
    }
}

thread_local! {
    /// The result of `fork`; -1 before the call.
    static CHILD: Cell<i32> = const { Cell::new(-1) };
    /// How long that took: one that waited for 1 s went without what a worker had in hand.
    static TOOK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn fork() {
    let start = Instant::now();
    // SAFETY: the registrations that are interrupted here hold no lock of the C library's.
    CHILD.set(unsafe { libc::fork() });
    TOOK.set(start.elapsed());
}

/// A fork in a signal handler: the registration goes on in both processes, and nothing is lost.
#[test]
fn a_fork_in_the_middle_of_a_registration() {
    let _one = one();
    for n in [5, 64, 0] {
        let length = length(&domain(1 << 14), n);
        let samples =
            Samples::new(format!("forks in {length} instructions after {n} callbacks"), LEAST / 2);
        for instructions in spread(length).take_while(|_| samples.go_on()) {
            let domain = domain(1 << 14);
            let callbacks = Callbacks::new(n + 2, Kind::Other);
            let status = thread::scope(|scope| {
                let registration = || {
                    drop(domain.read_lock());
                    (0..n).for_each(|i| callbacks.register(&domain, i));
                    CHILD.set(-1);
                    let forked = stepped(instructions, fork, || callbacks.register(&domain, n));
                    callbacks.register(&domain, n + 1);
                    let right = || {
                        let done = domain.barrier().is_ok() && domain.stats().waiting == 0;
                        let missed = CHILD.get() == 0 && TOOK.get() >= Duration::from_secs(1);
                        done && callbacks.ran().all(|ran| ran == 1 || missed && ran == 0)
                    };
                    match CHILD.get() {
                        // SAFETY: ends the child.
                        0 => unsafe { libc::_exit(if right() { 0 } else { 1 }) },
                        child => forked.then_some(child),
                    }
                };
                let child = scope.spawn(registration).join().unwrap();
                child.map(wait_for)
            });
            barrier(&domain, "in the parent");
            assert!(callbacks.ran().all(|ran| ran == 1), "{n}, {instructions}");
            if let Some(status) = status {
                samples.take();
                assert_eq!(status, 0, "{n}, {instructions}: in the child");
            }
        }
        samples.end();
    }
}

/// A child's status.
fn wait_for(child: i32) -> i32 {
    assert!(child > 0);
    let mut status = -1;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}
