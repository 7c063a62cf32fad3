// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition variable, and what becomes of its memory.

use super::tools::{Protected, caught, check};
use crate::lock::condition::Condition;
use crate::platform::sync::broken;
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

/// `waiters` threads wait, and this one ends the condition.
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

/// A cancelled thread, which may have taken the signal that was for the other one, leaves.
fn one_is_cancelled() {
    let (done, memory) = (Mutex::new(false), Protected::new());
    let waited = Arc::new(Waited { condition: Condition::new(), done, memory });
    // In its name: it waits before the signal.
    let entered = waited.condition.enter();
    let other = waited.clone();
    let waiter = thread::spawn(move || other.wait());
    let other = waited.clone();
    let cancelled = thread::spawn(move || {
        other.condition.signals().wait(entered, None);
        other.memory.read();
        if broken!(CancelledKeepsSignal, false, true) {
            other.condition.signal(1);
        }
        // SAFETY: entered above, and valid until then.
        unsafe { Condition::leave(&other.condition) };
    });
    *waited.done.lock().unwrap() = true;
    waited.condition.signal(1);
    waiter.join().unwrap();
    // Its cancellation, if it sleeps still.
    waited.condition.signals().wake(i32::MAX);
    cancelled.join().unwrap();
    waited.condition.destroy();
    waited.memory.write();
}

#[test]
fn a_cancelled_thread_passes_a_signal_on() {
    check(3, one_is_cancelled);
}

#[test]
fn one_waits() {
    check(4, || waiters(Condition::new(), 1));
}

#[test]
fn two_wait() {
    check(2, || waiters(Condition::new(), 2));
}

/// No thread that waited in the parent leaves.
#[test]
fn child_of_a_fork() {
    check(3, || waiters(Condition::left(3), 1));
    check(3, || waiters(Condition::left(3), 0));
}

caught! {
    broken_cancelled_keeps_signal: CancelledKeepsSignal, check(3), one_is_cancelled();
    broken_signals_unseen: SignalsUnseen, check(2), waiters(Condition::new(), 1);
    broken_destroyed_at_once: DestroyedAtOnce, check(2), waiters(Condition::new(), 1);
    broken_leaves_before_sleeping: LeavesBeforeSleeping, check(2), waiters(Condition::new(), 1);
    broken_last_wakes_nobody: LastWakesNobody, check(2), waiters(Condition::new(), 1);
}
