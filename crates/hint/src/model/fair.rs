// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue-based fair lock.

use super::env::How;
use super::tools::{Protected, check, check_broken, check_sleepers};
use crate::lock::fair::Queue;
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

macro_rules! caught {
    ($($name:ident: $how:ident, $preemptions:expr, $others:expr, $sections:expr;)*) => {
        $(
            #[test]
            #[ignore = "must fail: run by broken_protocols_are_caught"]
            fn $name() {
                check_broken(How::$how, $preemptions, || threads($others, $sections));
            }
        )*
    };
}

caught! {
    broken_passive_forgotten: PassiveForgotten, 2, 2, 1;
    broken_grant_without_waking: GrantWithoutWaking, 3, 1, 1;
    broken_parked_by_store: ParkedByStore, 3, 1, 1;
}
