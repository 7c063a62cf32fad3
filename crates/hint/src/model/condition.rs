// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition variable, and what becomes of its memory.

use super::tools::{Protected, check, check_broken};
use crate::lock::condition::{Condition, Entered};
use crate::platform::env::How;
use crate::platform::sync::broken;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

struct Waited {
    condition: Condition,
    done: Mutex<bool>,
    /// Accessed where the condition's memory is.
    memory: Protected,
}

impl Waited {
    fn wait(&self) {
        let mut done = self.done.lock().unwrap();
        while !*done {
            let entered = self.condition.enter();
            drop(done);
            self.memory.read();
            // SAFETY: entered above, and valid until then.
            unsafe { Condition::sleep(&self.condition, entered, None) };
            done = self.done.lock().unwrap();
        }
    }

    /// Signals all, destroys the condition and gives its memory another use.
    fn end(&self) {
        let mut done = self.done.lock().unwrap();
        *done = true;
        self.condition.signal(i32::MAX);
        drop(done);
        self.condition.destroy();
        self.memory.write();
        self.condition.reuse();
    }
}

/// That many threads wait, and this one ends it.
fn waiters(condition: Condition, waiters: usize) {
    let (done, memory) = (Mutex::new(false), Protected::new());
    let waited = Arc::new(Waited { condition, done, memory });
    let wait = || {
        let waited = waited.clone();
        thread::spawn(move || waited.wait())
    };
    let handles: Vec<_> = (0..waiters).map(|_| wait()).collect();
    waited.end();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
}

/// What the program has done with, under the mutex.
#[derive(PartialEq, PartialOrd)]
enum Gone {
    Nothing,
    Condition,
    Predicate,
}

/// What cancelled threads wait for: each in a loop, as programs do, until it is true.
struct Cancelled {
    condition: Condition,
    mutex: Mutex<Gone>,
    cancelled: AtomicBool,
    /// Accessed where the condition's memory is.
    memory: Protected,
}

impl Cancelled {
    fn new() -> Arc<Cancelled> {
        let (mutex, cancelled) = (Mutex::new(Gone::Nothing), AtomicBool::new(false));
        let (condition, memory) = (Condition::new(), Protected::new());
        Arc::new(Cancelled { condition, mutex, cancelled, memory })
    }

    /// `pthread_testcancel`, in the shim where the model has it.
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn enter(&self, gone: &Gone) -> Entered {
        assert!(*gone < Gone::Condition);
        self.memory.read();
        self.condition.enter()
    }

    fn wait(&self) {
        let gone = self.mutex.lock().unwrap();
        if !self.is_cancelled() {
            let entered = self.enter(&gone);
            drop(gone);
            self.wait_on(entered);
        }
    }

    fn wait_on(&self, mut entered: Entered) {
        loop {
            self.memory.read();
            // SAFETY: entered, and valid until then.
            let woken = unsafe { Condition::sleep(&self.condition, entered, None) };
            let gone = self.mutex.lock().unwrap();
            let ends = || broken!(CancelledComesBack, false, self.is_cancelled());
            if woken.destroyed && ends() {
                return;
            }
            // The program looks at the predicate.
            assert!(*gone < Gone::Predicate);
            if ends() {
                return;
            }
            entered = self.enter(&gone);
        }
    }

    /// Cancels all, destroys the condition and gives its memory another use.
    fn end(&self, holds_mutex: bool, gone: Gone) {
        let mutex = holds_mutex.then(|| self.mutex.lock().unwrap());
        self.cancelled.store(true, Ordering::Relaxed);
        self.condition.destroy();
        self.memory.write();
        self.condition.reuse();
        *mutex.unwrap_or_else(|| self.mutex.lock().unwrap()) = gone;
    }
}

/// A cancelled thread sleeps, and nobody signals it.
fn cancelled(holds_mutex: bool) {
    let all = Cancelled::new();
    // In the other thread's name: it waits before this one destroys the condition.
    let (other, entered) = (all.clone(), all.enter(&Gone::Nothing));
    let waiter = thread::spawn(move || other.wait_on(entered));
    all.end(holds_mutex, Gone::Predicate);
    waiter.join().unwrap();
}

/// A thread is signalled, finds no reason, and is cancelled before it waits again or after.
fn cancelled_after_a_signal() {
    let all = Cancelled::new();
    let other = all.clone();
    let waiter = thread::spawn(move || other.wait());
    all.condition.signal(1);
    all.end(true, Gone::Condition);
    waiter.join().unwrap();
}

/// Threads begin to wait while the condition is destroyed, whose memory stays.
fn cancelled_late(waiters: usize) {
    let all = Cancelled::new();
    // It has been in use before.
    all.enter(&Gone::Nothing);
    // SAFETY: entered just now.
    unsafe { Condition::leave(&all.condition) };
    let wait = || {
        let other = all.clone();
        thread::spawn(move || other.wait())
    };
    let handles: Vec<_> = (0..waiters).map(|_| wait()).collect();
    all.cancelled.store(true, Ordering::Relaxed);
    all.condition.destroy();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
}

#[test]
fn one_is_cancelled() {
    check(6, || cancelled(false));
    check(6, || cancelled(true));
    check(6, cancelled_after_a_signal);
}

#[test]
fn cancelled_while_they_begin() {
    check(6, || cancelled_late(1));
    check(3, || cancelled_late(2));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_destroyed_unheard() {
    check_broken(How::DestroyedUnheard, 2, || cancelled(false));
}

/// As a thread whose wait is no cancellation point.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_cancelled_comes_back() {
    check_broken(How::CancelledComesBack, 2, || cancelled(false));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_leaves_untold() {
    check_broken(How::LeavesUntold, 2, || cancelled(false));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_counts_first() {
    check_broken(How::CountsFirst, 2, || cancelled_late(1));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_enters_untold() {
    check_broken(How::EntersUntold, 2, || cancelled_late(2));
}

#[test]
fn one_waits() {
    check(4, || waiters(Condition::new(), 1));
}

#[test]
fn two_wait() {
    check(2, || waiters(Condition::new(), 2));
}

/// Of the threads that waited in the parent none leaves.
#[test]
fn child_of_a_fork() {
    check(3, || waiters(Condition::left(3), 1));
    check(3, || waiters(Condition::left(3), 0));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_destroyed_at_once() {
    check_broken(How::DestroyedAtOnce, 2, || waiters(Condition::new(), 1));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_leaves_before_sleeping() {
    check_broken(How::LeavesBeforeSleeping, 2, || waiters(Condition::new(), 1));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_last_wakes_nobody() {
    check_broken(How::LastWakesNobody, 2, || waiters(Condition::new(), 1));
}
