// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mutex.

use super::tools::{Protected, caught, check};
use crate::lock::mutex::Core;
use crate::platform::end::End;
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
        self.core.lock(me | HELD, None);
        self.value.write();
        self.core.unlock();
    }
}

/// `others` threads with one section each, and `sections` in this one.
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
            if other.core.lock(3 | HELD, Some(End::Monotonic(1))) {
                other.value.write();
                other.core.unlock();
            }
        });
        mutex.section(1);
        patient.join().unwrap();
        hasty.join().unwrap();
    });
}

/// The child of a fork: the lock is held by the thread that forked, or free, and the parent's
/// threads may have left anything about themselves.
fn forked(holds: bool, parked: u32, heir: u32, active: u32, waking: u32) {
    let owner = if holds { 1 | HELD } else { 0 };
    let core = Core::left(owner, parked, heir, active, waking);
    let mutex = Arc::new(Mutex { core, value: Protected::new() });
    let other = mutex.clone();
    let thread = thread::spawn(move || other.section(2));
    if holds {
        mutex.value.write();
        mutex.core.unlock();
    } else {
        mutex.section(1);
    }
    thread.join().unwrap();
    assert_eq!(mutex.value.read(), 2);
}

#[test]
fn child_of_a_fork() {
    for left in 0..48 {
        let (holds, parked, active) = (left & 1 == 1, left >> 1 & 1, left >> 2 & 1);
        let (heir, waking) = ((left >> 3 & 1) * (9 | HELD), left >> 4);
        check(2, move || forked(holds, parked, heir, active, waking));
    }
}

caught! {
    broken_ghosts_count: GhostsCount, check(2), forked(true, 1, 0, 1, 1);
    broken_ghost_is_heir: GhostsCount, check(2), forked(true, 0, 9 | HELD, 0, 0);
    broken_sleep_without_fence: SleepsWithoutFence, check(3), threads(1, 2);
    broken_sleep_without_trying: SleepsWithoutTrying, check(3), threads(1, 2);
    broken_waking_nobody: WakingNobody, check(3), threads(2, 2);
    broken_turn_read_late: TurnReadLate, check(3), threads(1, 2);
    broken_turn_kept: TurnKept, check(3), threads(1, 2);
    broken_heir_not_taken_out: HeirNotTakenOut, check(3), threads(1, 3);
}
