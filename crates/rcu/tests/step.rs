// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations that end, or fork, between any two of their instructions: single-stepped, a thread runs a signal handler after each.
#![cfg(target_arch = "x86_64")]

use reprieve::{Cap, Domain, Head};
use std::arch::asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// One test at a time: a fork in one keeps the registrations of all out of their stashes.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without optimization there are many more instructions, to the same effect.
const STRIDE: u64 = if cfg!(debug_assertions) { 16 } else { 1 };

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

/// Runs `f`, and `action` in a handler after that many instructions of it. False if there were fewer. `f` blocks no signals and starts no thread.
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

#[repr(C)]
struct Callback {
    head: Head,
    ran: AtomicU32,
}

unsafe extern "C" fn run(head: *mut Head) {
    // SAFETY: the head is the first field of a callback, none of which is ever freed.
    unsafe { &*head.cast::<Callback>() }.ran.fetch_add(1, SeqCst);
}

/// Callbacks to be registered one after the other.
struct Callbacks(Vec<*mut Callback>);

// SAFETY: the callbacks are never freed; those who share this register each of them once.
unsafe impl Sync for Callbacks {}
// SAFETY: as above.
unsafe impl Send for Callbacks {}

impl Callbacks {
    fn new(n: usize) -> Callbacks {
        let new =
            || Box::into_raw(Box::new(Callback { head: Head::new(), ran: AtomicU32::new(0) }));
        Callbacks((0..n).map(|_| new()).collect())
    }

    fn register(&self, domain: &Domain, i: usize) {
        self.register_as(domain, i, run);
    }

    fn register_as(&self, domain: &Domain, i: usize, function: reprieve::Function) {
        // SAFETY: once, and never freed.
        unsafe { domain.retire(std::ptr::null(), self.0[i].cast(), function, 16, true) };
    }

    fn ran(&self) -> impl Iterator<Item = u32> {
        // SAFETY: never freed.
        self.0.iter().map(|&callback| unsafe { &*callback }.ran.load(SeqCst))
    }
}

/// With a worker that runs.
fn domain(soft: u64) -> Arc<Domain> {
    let soft = Cap { bytes: u64::MAX, callbacks: soft };
    let domain = Domain::builder().single_list(true).soft_cap(soft).build().unwrap();
    domain.defer(|| ());
    domain.barrier().unwrap();
    Arc::new(domain)
}

/// `barrier`, which ends.
fn barrier(domain: &Arc<Domain>, when: &str) {
    let (done, ended) = mpsc::channel();
    let waited = domain.clone();
    let waiter = thread::spawn(move || done.send(waited.barrier()));
    assert_eq!(ended.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "{when}");
    // A thread that comes or goes during a fork has a lock of the standard library's, which the child needs to start one.
    waiter.join().unwrap().unwrap();
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

/// Returns when one more than `before` has been forgotten: by this thread, or by a worker that came first.
fn forget_the_dead(domain: &Domain, before: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    // The join may come a moment before the kernel has let the thread go.
    while domain.stats().forgotten == before {
        assert!(Instant::now() < end, "nobody died");
        domain.forget_dead_threads();
    }
}

/// A thread registers `n` callbacks and dies in the next registration, after that many instructions. Whether it did; and how many callbacks
/// were lost with it.
fn killed_in_a_registration(domain: &Arc<Domain>, n: usize, instructions: u64) -> (bool, usize) {
    let callbacks = Callbacks::new(n + 1);
    let forgotten = domain.stats().forgotten;
    let died = on_a_mortal_thread(|| {
        drop(domain.read_lock());
        (0..n).for_each(|i| callbacks.register(domain, i));
        stepped(instructions, die, || callbacks.register(domain, n));
    });
    if died {
        forget_the_dead(domain, forgotten);
    }
    barrier(domain, &format!("{n} callbacks, {instructions} instructions into the next"));
    assert!(callbacks.ran().all(|ran| ran <= 1));
    (died, callbacks.ran().filter(|&ran| ran == 0).count())
}

/// Into a stash that is open, one that is full, none that is open yet.
#[test]
fn a_thread_that_dies_in_a_registration_loses_no_more_than_it_has_in_hand() {
    let _one = one();
    let domain = domain(1 << 14);
    for n in [5, 64, 0] {
        let (mut lost, mut instructions) = (Vec::new(), 1);
        loop {
            let (died, missing) = killed_in_a_registration(&domain, n, instructions);
            if !died {
                assert_eq!(missing, 0);
                break;
            }
            lost.push(missing);
            instructions += STRIDE;
        }
        // Its own callback, until it is in the stash, or on the list. And for some instructions what goes from the stash to the list.
        assert_eq!(lost[0], 1, "{n}: {lost:?}");
        let many = lost.iter().filter(|&&lost| lost > 1).count();
        assert!(lost.len() > 20 && (many == 0 || n == 64 && many < lost.len() / 2), "{lost:?}");
    }
}

/// The same for registrations that help with grace periods and run what is ready. They have more in hand.
#[test]
fn a_thread_that_dies_while_it_helps() {
    let _one = one();
    let domain = domain(256);
    let helped = domain.stats().helped;
    let mut instructions = 1;
    for i in 0u64.. {
        if !killed_in_a_registration(&domain, 232 + i as usize * 5 % 24, instructions).0 && i > 60 {
            break;
        }
        instructions += 1 + instructions / 24;
    }
    assert!(domain.stats().helped > helped);
}

/// Nobody asks for dead threads, and `barrier` finds out by itself; so does the drop of a domain.
#[test]
fn barrier_looks_for_dead_owners() {
    let _one = one();
    let killed = |domain: &Arc<Domain>, instructions| {
        let callbacks = Callbacks::new(3);
        assert!(on_a_mortal_thread(|| {
            (0..2).for_each(|i| callbacks.register(domain, i));
            stepped(instructions, die, || callbacks.register(domain, 2));
        }));
        callbacks
    };
    let all_but_one_ran = |callbacks: &Callbacks| callbacks.ran().take(2).all(|ran| ran == 1);
    // Where it is inside its stash.
    let inside = (5..).step_by(5).find(|&instructions| {
        let domain = domain(1 << 14);
        let callbacks = killed(&domain, instructions);
        barrier(&domain, "a dead owner");
        assert!(all_but_one_ran(&callbacks));
        domain.stats().forgotten == 1
    });
    let domain = domain(1 << 14);
    let callbacks = killed(&domain, inside.unwrap());
    drop(Arc::into_inner(domain).unwrap());
    assert!(all_but_one_ran(&callbacks));
}

/// A leaf callback that ends its thread when it is run from the stash, in the middle of a registration.
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
    let end = Instant::now() + Duration::from_secs(20);
    while deaths < 3 {
        assert!(Instant::now() < end, "nobody helped");
        let callbacks = Callbacks::new(1000);
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
    /// What `fork` returned; -1 before.
    static CHILD: Cell<i32> = const { Cell::new(-1) };
}

fn fork() {
    // SAFETY: the registrations that are interrupted here hold no lock of the C library's.
    CHILD.set(unsafe { libc::fork() });
}

/// A fork in a signal handler: the registration goes on in both processes, and nothing is lost.
#[test]
fn a_fork_in_the_middle_of_a_registration() {
    let _one = one();
    for n in [5, 64, 0] {
        for instructions in (1..).step_by(3 * STRIDE as usize) {
            let domain = domain(1 << 14);
            let callbacks = Callbacks::new(n + 2);
            let status = thread::scope(|scope| {
                let registration = || {
                    drop(domain.read_lock());
                    (0..n).for_each(|i| callbacks.register(&domain, i));
                    CHILD.set(-1);
                    let forked = stepped(instructions, fork, || callbacks.register(&domain, n));
                    callbacks.register(&domain, n + 1);
                    let right = || {
                        let done = domain.barrier().is_ok() && domain.stats().waiting == 0;
                        done && callbacks.ran().all(|ran| ran == 1)
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
            match status {
                None => break,
                Some(status) => assert_eq!(status, Some(0), "{n}, {instructions}: in the child"),
            }
        }
    }
}

/// A child's status. Kills it after 20 s.
fn wait_for(child: i32) -> Option<i32> {
    assert!(child > 0);
    let (end, mut status) = (Instant::now() + Duration::from_secs(20), 0);
    // SAFETY: our own child.
    unsafe {
        while libc::waitpid(child, &mut status, libc::WNOHANG) != child {
            if Instant::now() > end {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    Some(status)
}
