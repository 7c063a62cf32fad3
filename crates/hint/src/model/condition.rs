// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition variable, and what becomes of its memory.

use super::env::How;
use super::tools::{Protected, check, check_broken};
use crate::lock::condition::Condition;
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
            let before = self.condition.enter();
            drop(done);
            self.memory.read();
            // SAFETY: entered above, and valid until then.
            unsafe { Condition::sleep(&self.condition, before, None) };
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

/// A thread that was cancelled sleeps, and nobody signals it.
fn cancelled() {
    let (done, memory) = (Mutex::new(false), Protected::new());
    let waited = Arc::new(Waited { condition: Condition::new(), done, memory });
    // In the other thread's name: it waits before this one destroys the condition.
    let before = waited.condition.enter();
    let other = waited.clone();
    let waiter = thread::spawn(move || {
        other.memory.read();
        // SAFETY: entered above, and valid until then.
        unsafe { Condition::sleep(&other.condition, before, None) };
    });
    waited.condition.destroy();
    waited.memory.write();
    waited.condition.reuse();
    waiter.join().unwrap();
}

#[test]
fn one_is_cancelled() {
    check(4, cancelled);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_destroyed_unheard() {
    check_broken(How::DestroyedUnheard, 2, cancelled);
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
