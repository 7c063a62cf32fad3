// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fork handlers of the process, and the lock that keeps forks away for a moment.
//!
//! The handlers are installed once, at start-up. What they do is up to the folders above, which
//! this one cannot name: each enters its own functions here before it has any state that a child
//! must put right. [`crate::domain`] says what a fork promises (`domain/fork.rs`).

use super::lock::Lock;
use super::sys::{self, SignalsBlocked};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The fork handlers of one part of the crate.
pub(crate) struct Handlers {
    /// In the parent, before the fork.
    pub(crate) prepare: fn(),
    /// In the parent, after it.
    pub(crate) parent: fn(),
    /// In the child, whose only thread this is.
    pub(crate) child: fn(),
}

impl Handlers {
    /// For a part that only the child has to put right.
    pub(crate) const fn in_child(child: fn()) -> Handlers {
        Handlers { prepare: || (), parent: || (), child }
    }
}

/// The parts that have handlers, in the order in which a child runs them.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Threads,
    CpuThreads,
    Domains,
}

const PARTS: usize = Part::Domains as usize + 1;

static HANDLERS: [AtomicPtr<Handlers>; PARTS] = [const { AtomicPtr::new(null_mut()) }; PARTS];

/// Enters the handlers of a part. Any number of times, in a signal handler too.
///
/// A part whose `parent` needs `prepare` enters them while forks are [`excluded`].
pub(crate) fn enter(part: Part, handlers: &'static Handlers) {
    let (entry, handlers) = (&HANDLERS[part as usize], std::ptr::from_ref(handlers).cast_mut());
    if entry.load(Ordering::Relaxed) != handlers {
        entry.store(handlers, Ordering::Release);
    }
}

fn entered() -> impl Iterator<Item = &'static Handlers> {
    // SAFETY: null, or what `enter` was given.
    HANDLERS.iter().filter_map(|h| unsafe { h.load(Ordering::Acquire).as_ref() })
}

/// Forks that are being prepared.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Forks prepare one at a time. The C library serializes handlers in its own way, but does not
/// promise it.
static ONE: Lock = Lock::new();

/// The handlers are installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Once, even if the process forks in between: if the handlers were there at the fork, the child
/// has run one, which notes it.
pub(super) fn install() {
    if !INSTALLED.load(Ordering::Relaxed) {
        // SAFETY: the handlers are functions of this image, which is kept loaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        INSTALLED.store(true, Ordering::Relaxed);
    }
}

/// Runs `f` while no fork is being prepared, with all signals blocked: a handler may fork.
pub(crate) fn excluded<R>(f: impl FnOnce() -> R) -> R {
    let _blocked = SignalsBlocked::new();
    ONE.lock();
    let result = f();
    ONE.unlock();
    result
}

/// Whether a fork waits for locks.
pub(crate) fn waiting() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// Lets a waiting fork have `lock`, and takes it again. Sleeps meanwhile: this may be a real-time
/// thread on the CPU of the one that forks.
pub(crate) fn let_pass(lock: &Lock) {
    lock.unlock();
    loop {
        match FORKS.load(Ordering::Relaxed) {
            0 => break,
            forks => sys::futex_wait(&FORKS, forks, None),
        }
    }
    lock.lock();
}

/// The signals of the thread that forks, under [`ONE`]: a handler that forks as well would wait for
/// that lock.
struct Blocked(UnsafeCell<Option<SignalsBlocked>>);

// SAFETY: touched under the lock only.
unsafe impl Sync for Blocked {}

static BLOCKED: Blocked = Blocked(UnsafeCell::new(None));

/// Ends the lock and then the blocking, and leaves errno alone, in which a fork may have left why
/// it failed.
fn end() {
    // SAFETY: under the lock; errno's location is this thread's own.
    unsafe {
        let blocked = (*BLOCKED.0.get()).take();
        ONE.unlock();
        let errno = *sys::errno();
        drop(blocked);
        *sys::errno() = errno;
    }
}

unsafe extern "C" fn prepare() {
    let blocked = SignalsBlocked::new();
    ONE.lock();
    // SAFETY: under the lock.
    unsafe { *BLOCKED.0.get() = Some(blocked) };
    FORKS.fetch_add(1, Ordering::SeqCst);
    entered().for_each(|h| (h.prepare)());
}

unsafe extern "C" fn parent() {
    entered().for_each(|h| (h.parent)());
    FORKS.fetch_sub(1, Ordering::SeqCst);
    // Wakes the threads in `let_pass`.
    sys::futex_wake(&FORKS, i32::MAX);
    end();
}

unsafe extern "C" fn child() {
    INSTALLED.store(true, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    super::facts::after_fork();
    entered().for_each(|h| (h.child)());
    end();
}

#[cfg(test)]
mod tests {
    use super::*;

    static FORKED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn fork(_: i32) {
        let mut status = -1;
        // SAFETY: the child only exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        assert_eq!(status, 0);
        FORKED.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread that lets a fork pass leaves its CPU to it.
    #[test]
    fn a_thread_that_lets_a_fork_pass_sleeps() {
        super::super::start::ensure();
        static LOCK: Lock = Lock::new();
        static ID: AtomicU32 = AtomicU32::new(0);
        LOCK.lock();
        // As the C library calls it before a fork.
        // SAFETY: what it locks is free.
        unsafe { prepare() };
        let thread = std::thread::spawn(|| {
            ID.store(sys::thread_id(), Ordering::SeqCst);
            let_pass(&LOCK);
        });
        while !LOCK.try_lock() {
            std::thread::yield_now();
        }
        LOCK.unlock();
        let id = ID.load(Ordering::SeqCst);
        let stat = format!("/proc/self/task/{id}/stat");
        let sleeps = || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(')').next().unwrap().starts_with(" S")
        };
        // A thread that spins never sleeps.
        while !sleeps() {
            std::thread::yield_now();
        }
        // SAFETY: prepared above, by this thread.
        unsafe { parent() };
        thread.join().unwrap();
    }

    /// A handler that forks waits for `f`, or for another fork, instead of for ever.
    #[test]
    fn a_handler_that_forks_comes_after() {
        super::super::start::ensure();
        // SAFETY: the handler is made for any moment at which none of the test's locks is held.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = fork as extern "C" fn(i32) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        excluded(|| {
            // SAFETY: raises a signal of this thread, which has a handler.
            unsafe { libc::raise(libc::SIGUSR1) };
            assert_eq!(FORKED.load(Ordering::SeqCst), 0);
        });
        assert_eq!(FORKED.load(Ordering::SeqCst), 1);
        // As the C library calls them around a fork, which has left its error in errno.
        // SAFETY: what they lock is free; raises a signal as above; errno is this thread's.
        unsafe {
            prepare();
            libc::raise(libc::SIGUSR1);
            assert_eq!(FORKED.load(Ordering::SeqCst), 1);
            *sys::errno() = libc::EAGAIN;
            parent();
            assert_eq!(*sys::errno(), libc::EAGAIN);
        }
        assert_eq!(FORKED.load(Ordering::SeqCst), 2);
    }
}
