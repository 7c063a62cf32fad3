// SPDX-License-Identifier: MIT OR Apache-2.0
//! fork: the child is usable at once.
//!
//! Only the forking thread exists in the child. Its own sections and protections go on there; those of the parent's other
//! threads are forgotten. A grace period that was running counts as not begun. Callbacks that were waiting run in both processes (each
//! frees its own copy): in the child once it registers a callback or waits for one. The child has no workers until then.
//!
//! To find every queue and every stash in order, a fork waits until no callback is being run or registered, at most [`LONGEST`]: a queue that could not
//! be had by then (its callback waits for something the forking thread holds) is abandoned in the child, which leaks its batch and never runs it twice; so is
//! a stash.
//! A callback may itself fork.
//!
//! The forking thread may be in the middle of a registration: it forks in a signal handler, or in a leaf callback that it runs from its stash. Nobody waits for
//! it then, its stash is left as it is, and the registration goes on in both processes. What it has in hand is in the accounts and in no place where
//! it could be counted, so the child's accounts stay those of the parent, until the registration is over and an audit finds out what was the other threads'
//! (`callback/audit.rs`). A handler that interrupted a *wait* (`synchronize`, `barrier`) must not fork, unless the child only execs: the locks that the wait
//! holds are free in the child.
//!
//! `vfork` and raw `clone` run none of this; a child that only execs needs none.

use crate::domain::core::{Core, cores};
use crate::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Longest wait for one queue, or for one domain's stashes.
const LONGEST: Duration = Duration::from_secs(1);

/// Forks that are waiting for queues.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// One fork at a time prepares. The C library serializes handlers in its own way, but does not promise it.
static ONE: Lock = Lock::new();

/// The handlers are installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Once, even if the process forks in the middle: a child that was forked when the handlers were there has run one, which says so.
pub(crate) fn install() {
    if !INSTALLED.load(Ordering::Relaxed) {
        // SAFETY: the handlers are functions of this image, which is kept loaded.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        INSTALLED.store(true, Ordering::Relaxed);
    }
}

/// Runs `f` while no fork is being prepared.
pub(crate) fn excluded<R>(f: impl FnOnce() -> R) -> R {
    ONE.lock();
    let result = f();
    ONE.unlock();
    result
}

pub(crate) fn waiting() -> bool {
    FORKS.load(Ordering::Relaxed) != 0
}

/// Lets a waiting fork have `lock`, and takes it again.
pub(crate) fn let_pass(lock: &Lock) {
    lock.unlock();
    while waiting() {
        std::thread::yield_now();
    }
    lock.lock();
}

/// Calls `f` with each queue, and whether this thread is running its callbacks.
fn queues(mut f: impl FnMut(&'static Core, usize, bool)) {
    for core in cores() {
        for index in 0..core.queues.len() {
            f(core, index, crate::thread::running(&core.queues[index]));
        }
    }
}

unsafe extern "C" fn prepare() {
    ONE.lock();
    FORKS.fetch_add(1, Ordering::SeqCst);
    for core in cores() {
        core.hold_stashes(LONGEST);
    }
    queues(|core, index, mine| {
        let queue = &core.queues[index];
        let missed = !mine && !queue.lock.lock_for(Some(LONGEST));
        queue.missed.store(missed, Ordering::Relaxed);
    });
}

unsafe extern "C" fn parent() {
    queues(|core, index, mine| {
        let queue = &core.queues[index];
        if !mine && !queue.missed.load(Ordering::Relaxed) {
            queue.lock.unlock();
        }
    });
    for core in cores() {
        core.release_stashes();
    }
    FORKS.fetch_sub(1, Ordering::SeqCst);
    ONE.unlock();
}

unsafe extern "C" fn child() {
    INSTALLED.store(true, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    ONE.reset();
    crate::startup::after_fork();
    crate::thread::after_fork();
    crate::watch::stack::after_fork();
    crate::visit::after_fork();
    for core in cores() {
        core.after_fork();
    }
}
