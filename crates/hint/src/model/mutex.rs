// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mutex.

use super::env::How;
use super::tools::{Protected, check, check_broken};
use crate::lock::mutex::Core;
use crate::wait::HELD;
use loom::sync::Arc;
use loom::thread;

struct Mutex {
    core: Core,
    value: Protected,
}

impl Mutex {
    fn new() -> Arc<Mutex> {
        Arc::new(Mutex { core: Core::new(), value: Protected::new() })
    }

    fn section(&self, me: u32) {
        self.core.lock(me | HELD);
        self.value.write();
        self.core.unlock();
    }
}

/// That many threads with one section each, and as many in this one.
fn threads(others: u32, sections: u32) {
    let mutex = Mutex::new();
    let spawn = |me| {
        let mutex = mutex.clone();
        thread::spawn(move || mutex.section(me))
    };
    let handles: Vec<_> = (2..2 + others).map(spawn).collect();
    for _ in 0..sections {
        mutex.section(1);
    }
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(mutex.value.read(), others + sections);
}

#[test]
fn two_threads() {
    check(3, || threads(1, 2));
}

#[test]
fn three_threads() {
    check(2, || threads(2, 2));
}

/// A thread whose time is over does not take a wake-up with it.
#[test]
fn one_gives_up() {
    check(2, || {
        let mutex = Mutex::new();
        let other = mutex.clone();
        let patient = thread::spawn(move || other.section(2));
        let other = mutex.clone();
        let hasty = thread::spawn(move || {
            if other.core.lock_until(3 | HELD, 1) {
                other.value.write();
                other.core.unlock();
            }
        });
        mutex.section(1);
        patient.join().unwrap();
        hasty.join().unwrap();
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
    broken_sleep_without_fence: SleepsWithoutFence, 3, 1, 2;
    broken_sleep_without_trying: SleepsWithoutTrying, 3, 1, 2;
    broken_waking_nobody: WakingNobody, 3, 2, 2;
    broken_heir_not_taken_out: HeirNotTakenOut, 3, 1, 3;
}
