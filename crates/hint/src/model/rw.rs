// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader-writer lock.

use super::env::How;
use super::tools::{Protected, check, check_broken, check_sleepers};
use crate::lock::rw::{Core, Prefer};
use crate::wait::HELD;
use loom::sync::Arc;
use loom::thread;

struct Lock {
    core: Core,
    prefer: Prefer,
    value: Protected,
}

impl Lock {
    fn read(&self, me: u32) {
        self.core.read(me | HELD, self.prefer);
        self.value.read();
        // SAFETY: locked above.
        unsafe { self.core.read_unlock() };
    }

    fn write(&self, me: u32) {
        self.core.write(me | HELD);
        self.value.write();
        // SAFETY: locked above.
        unsafe { self.core.write_unlock(self.prefer) };
    }
}

/// Threads that read (`true`) or write; the last of them is this one.
fn threads(kinds: &'static [bool]) {
    preferring(Prefer::Writers, kinds);
}

fn preferring(prefer: Prefer, kinds: &'static [bool]) {
    run(Lock { core: Core::new(), prefer, value: Protected::new() }, kinds);
}

fn run(lock: Lock, kinds: &'static [bool]) {
    let lock = Arc::new(lock);
    let work = |me: usize| {
        let lock = lock.clone();
        move || if kinds[me] { lock.read(me as u32 + 1) } else { lock.write(me as u32 + 1) }
    };
    let handles: Vec<_> = (0..kinds.len() - 1).map(|me| thread::spawn(work(me))).collect();
    work(kinds.len() - 1)();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert!(!lock.core.is_locked());
    let writers = kinds.iter().filter(|&&reads| !reads).count();
    assert_eq!(lock.value.read(), writers as u32);
}

#[test]
fn a_reader_and_a_writer() {
    check(3, || threads(&[true, false]));
}

#[test]
fn two_writers() {
    check(3, || threads(&[false, false]));
}

#[test]
fn two_readers_and_a_writer() {
    check_sleepers(1, || threads(&[true, true, false]));
}

#[test]
fn a_reader_and_two_writers() {
    check_sleepers(1, || threads(&[true, false, false]));
}

#[test]
fn two_readers_that_are_preferred_and_a_writer() {
    check_sleepers(1, || preferring(Prefer::Readers, &[true, true, false]));
}

#[test]
fn a_reader_that_is_preferred_and_two_writers() {
    check_sleepers(1, || preferring(Prefer::Readers, &[true, false, false]));
}

/// A writer that gives up leaves no other asleep.
#[test]
fn a_writer_gives_up() {
    check_sleepers(1, || {
        let prefer = Prefer::Writers;
        let lock = Arc::new(Lock { core: Core::new(), prefer, value: Protected::new() });
        lock.core.write(1 | HELD);
        let other = lock.clone();
        let patient = thread::spawn(move || other.write(2));
        let other = lock.clone();
        let hasty = thread::spawn(move || {
            if other.core.write_until(3 | HELD, 1) {
                other.value.write();
                // SAFETY: locked above.
                unsafe { other.core.write_unlock(prefer) };
            }
        });
        // SAFETY: locked above.
        unsafe { lock.core.write_unlock(prefer) };
        patient.join().unwrap();
        hasty.join().unwrap();
        assert!(!lock.core.is_locked());
    });
}

/// A reader that does not leave before another reader has come. Both find the lock held for
/// writing.
fn depends() {
    let prefer = Prefer::Readers;
    let lock = Arc::new(Lock { core: Core::new(), prefer, value: Protected::new() });
    lock.core.write(1 | HELD);
    let other = lock.clone();
    let reader = thread::spawn(move || other.read(2));
    let other = lock.clone();
    let depending = thread::spawn(move || {
        other.core.read(3 | HELD, prefer);
        reader.join().unwrap();
        // SAFETY: locked above.
        unsafe { other.core.read_unlock() };
    });
    // SAFETY: locked above.
    unsafe { lock.core.write_unlock(prefer) };
    depending.join().unwrap();
    assert!(!lock.core.is_locked());
}

#[test]
fn a_reader_depends_on_another() {
    check_sleepers(2, depends);
}

/// A reader that is preferred and gives up leaves no writer asleep.
fn preferred_reader_gives_up() {
    let prefer = Prefer::Readers;
    let lock = Arc::new(Lock { core: Core::new(), prefer, value: Protected::new() });
    lock.core.write(1 | HELD);
    let other = lock.clone();
    let patient = thread::spawn(move || other.write(2));
    let other = lock.clone();
    let hasty = thread::spawn(move || {
        if other.core.read_until(3 | HELD, prefer, 1) {
            other.value.read();
            // SAFETY: locked above.
            unsafe { other.core.read_unlock() };
        }
    });
    // SAFETY: locked above.
    unsafe { lock.core.write_unlock(prefer) };
    patient.join().unwrap();
    hasty.join().unwrap();
    assert!(!lock.core.is_locked());
}

#[test]
fn a_preferred_reader_gives_up() {
    check_sleepers(2, preferred_reader_gives_up);
}

/// The child of a fork: the lock is free, and whoever freed it in the parent wakes nobody here.
fn forked(kinds: &'static [bool], readers: bool, writers: bool) {
    let core = Core::left(readers, writers);
    run(Lock { core, prefer: Prefer::Writers, value: Protected::new() }, kinds);
}

#[test]
fn child_of_a_fork() {
    for left in 1..4 {
        let (readers, writers) = (left & 1 == 1, left & 2 == 2);
        check_sleepers(2, move || forked(&[true, true], readers, writers));
        check_sleepers(2, move || forked(&[true, false], readers, writers));
    }
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_first_wakes_nobody() {
    check_broken(How::FirstWakesNobody, 1, || forked(&[true, true], true, true));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_quick_for_ghosts() {
    check_broken(How::QuickForGhosts, 1, || forked(&[true, true], true, true));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_writer_forgets_others() {
    check_broken(How::WriterForgetsOthers, 2, || threads(&[false, false, false]));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_readers_forgotten() {
    check_broken(How::ReadersForgotten, 2, || threads(&[true, false, false]));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_entering_wakes_nobody() {
    check_broken(How::EnteringWakesNobody, 2, depends);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_writers_forgotten() {
    check_broken(How::WritersForgotten, 2, preferred_reader_gives_up);
}
