// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue-based fair lock.

use super::tools::{Protected, caught, check, check_sleepers};
use crate::lock::fair::Queue;
use crate::lock::node::ghost;
use crate::thread::Line;
use loom::sync::Arc;
use loom::thread;

struct Lock {
    queue: Queue,
    value: Protected,
}

impl Lock {
    fn section(&self, line: &Line) {
        self.queue.lock(line);
        self.value.write();
        // SAFETY: locked above.
        unsafe { self.queue.unlock() };
    }
}

fn threads(others: u32, sections: u32) {
    let lock = Arc::new(Lock { queue: Queue::new(), value: Protected::new() });
    let spawn = |me| {
        let lock = lock.clone();
        thread::spawn(move || lock.section(&Line::model(me)))
    };
    let handles: Vec<_> = (2..2 + others).map(spawn).collect();
    let line = Line::model(1);
    for _ in 0..sections {
        lock.section(&line);
    }
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(lock.value.read(), others + sections);
    assert!(!lock.queue.is_locked());
}

#[test]
fn two_threads() {
    check_sleepers(2, || threads(1, 2));
}

#[test]
fn three_threads() {
    check_sleepers(1, || threads(2, 1));
}

#[test]
fn trying() {
    check(3, || {
        let lock = Arc::new(Lock { queue: Queue::new(), value: Protected::new() });
        let other = lock.clone();
        let thread = thread::spawn(move || other.section(&Line::model(2)));
        if lock.queue.try_lock(&Line::model(1)) {
            lock.value.write();
            // SAFETY: locked above.
            unsafe { lock.queue.unlock() };
        }
        thread.join().unwrap();
        assert!(!lock.queue.is_locked());
    });
}

/// The child of a fork by the holder, with so many nodes of the parent's, the first of them linked
/// or not.
fn forked(waiting: u32, linked: bool, passive: u32, others: u32) {
    let nodes = |n: u32| (0..n).map(|i| ghost(&Line::model(9 + i))).collect::<Vec<_>>();
    let holder = ghost(&Line::model(1));
    let queue = Queue::left(holder, &nodes(waiting), linked, &nodes(passive));
    let lock = Arc::new(Lock { queue, value: Protected::new() });
    let spawn = |me| {
        let lock = lock.clone();
        thread::spawn(move || lock.section(&Line::model(me)))
    };
    let handles: Vec<_> = (2..2 + others).map(spawn).collect();
    lock.value.write();
    // SAFETY: left so.
    unsafe { lock.queue.unlock() };
    lock.section(&Line::model(1));
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(lock.value.read(), others + 2);
    assert!(!lock.queue.is_locked());
}

#[test]
fn child_of_a_fork() {
    for (waiting, linked, passive) in
        [(0, true, 0), (0, true, 1), (1, true, 0), (1, false, 0), (2, false, 1)]
    {
        check_sleepers(2, move || forked(waiting, linked, passive, 1));
    }
}

#[test]
fn two_threads_in_the_child_of_a_fork() {
    check_sleepers(1, || forked(1, false, 1, 2));
}

caught! {
    broken_ghost_granted: GhostGranted, check(2), forked(1, true, 0, 1);
    broken_passive_forgotten: PassiveForgotten, check(2), threads(2, 1);
    broken_grant_without_waking: GrantWithoutWaking, check(3), threads(1, 1);
    broken_parked_by_store: ParkedByStore, check(3), threads(1, 1);
}
