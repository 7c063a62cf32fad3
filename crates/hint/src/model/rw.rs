// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader-writer lock.

use super::tools::{Protected, caught, check, check_sleepers, check_spinners};
use crate::lock::rw::{Core, Prefer};
use crate::platform::end::End;
use crate::wait::HELD;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

struct Lock {
    core: Core,
    prefer: Prefer,
    value: Protected,
}

impl Lock {
    fn new(prefer: Prefer) -> Lock {
        Lock { core: Core::new(), prefer, value: Protected::new() }
    }

    /// A writer that may give up.
    fn write_hastily(&self, me: u32) {
        if self.core.write(me | HELD, self.prefer, Some(End::Monotonic(1))) {
            self.value.write();
            // SAFETY: locked above.
            unsafe { Core::write_unlock(&self.core, self.prefer) };
        }
    }

    fn read(&self, me: u32) {
        self.core.read(me | HELD, self.prefer, None);
        self.value.read();
        // SAFETY: locked above.
        unsafe { Core::unlock(&self.core, self.prefer) };
    }

    fn write(&self, me: u32) {
        self.core.write(me | HELD, self.prefer, None);
        self.value.write();
        // SAFETY: locked above.
        unsafe { Core::write_unlock(&self.core, self.prefer) };
    }
}

/// Threads that read (`true`) or write; the last of them is this one.
fn threads(kinds: &'static [bool]) {
    preferring(Prefer::Writers, kinds);
}

fn preferring(prefer: Prefer, kinds: &'static [bool]) {
    run(Lock::new(prefer), kinds);
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

/// Whoever has the lock as the last frees its memory afterwards, and it gets another use.
fn vanishes(kinds: &'static [bool], prefer: Prefer) {
    /// Not 0, and what a release that is late would change.
    const OTHERS: u32 = 1 << 30;
    let lock = Arc::new((Lock::new(prefer), AtomicU32::new(0)));
    let work = |me: usize| {
        let lock = lock.clone();
        move || {
            let (lock, ended) = &*lock;
            let name = (me as u32 + 1) | HELD;
            if kinds[me] {
                lock.core.read(name, prefer, None);
            } else {
                lock.core.write(name, prefer, None);
            }
            let last = ended.fetch_add(1, Ordering::AcqRel) as usize == kinds.len() - 1;
            // SAFETY: locked above.
            unsafe { Core::unlock(&lock.core, prefer) };
            if last {
                lock.core.reuse(OTHERS);
            }
        }
    };
    let handles: Vec<_> = (0..kinds.len() - 1).map(|me| thread::spawn(work(me))).collect();
    work(kinds.len() - 1)();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert!(lock.0.core.is_reused(OTHERS));
}

#[test]
fn the_last_user_frees_the_memory() {
    for prefer in [Prefer::Writers, Prefer::Readers] {
        check_sleepers(3, move || vanishes(&[true, false], prefer));
        check_sleepers(3, move || vanishes(&[false, false], prefer));
    }
}

/// A writer waits, and a hasty thread, which may give up: no one is left asleep.
fn gives_up(prefer: Prefer, hasty: fn(&Lock)) {
    let lock = Arc::new(Lock::new(prefer));
    lock.core.write(1 | HELD, prefer, None);
    let other = lock.clone();
    let patient = thread::spawn(move || other.write(2));
    let other = lock.clone();
    let hasty = thread::spawn(move || hasty(&other));
    // SAFETY: locked above.
    unsafe { Core::write_unlock(&lock.core, prefer) };
    patient.join().unwrap();
    hasty.join().unwrap();
    assert!(!lock.core.is_locked());
}

/// A writer that gives up leaves no other asleep.
#[test]
fn a_writer_gives_up() {
    check_sleepers(1, || gives_up(Prefer::Writers, |lock| lock.write_hastily(3)));
}

/// A writer that gives up keeps no reader out of a lock that readers hold: neither one that came
/// meanwhile, which may sleep, nor one that comes afterwards.
fn gives_up_among_readers() {
    let lock = Arc::new(Lock::new(Prefer::Writers));
    lock.core.read(1 | HELD, lock.prefer, None);
    let other = lock.clone();
    let hasty = thread::spawn(move || other.write_hastily(2));
    let other = lock.clone();
    let reader = thread::spawn(move || other.read(3));
    hasty.join().unwrap();
    reader.join().unwrap();
    assert!(lock.core.try_read(4 | HELD, lock.prefer));
}

#[test]
fn a_writer_gives_up_among_readers() {
    check_sleepers(2, gives_up_among_readers);
}

/// The same, while a reader's release finds that another has come.
fn gives_up_beside_a_release() {
    let lock = Arc::new(Lock::new(Prefer::Writers));
    lock.core.read(1 | HELD, lock.prefer, None);
    let other = lock.clone();
    // SAFETY: locked above.
    let release = thread::spawn(move || unsafe { Core::unlock(&other.core, other.prefer) });
    let other = lock.clone();
    let hasty = thread::spawn(move || other.write_hastily(2));
    lock.core.read(3 | HELD, lock.prefer, None);
    release.join().unwrap();
    hasty.join().unwrap();
    assert!(lock.core.try_read(4 | HELD, lock.prefer));
}

#[test]
fn a_writer_gives_up_beside_a_release() {
    check_sleepers(1, gives_up_beside_a_release);
}

/// A patient writer and a hasty one, who finds readers: the patient one is not left asleep.
fn gives_up_beside_a_writer() {
    let lock = Arc::new(Lock::new(Prefer::Writers));
    lock.core.read(1 | HELD, lock.prefer, None);
    let other = lock.clone();
    let hasty = thread::spawn(move || other.write_hastily(2));
    let other = lock.clone();
    let patient = thread::spawn(move || other.write(3));
    // SAFETY: locked above.
    unsafe { Core::unlock(&lock.core, lock.prefer) };
    hasty.join().unwrap();
    patient.join().unwrap();
    assert!(!lock.core.is_locked());
}

#[test]
fn a_writer_gives_up_beside_a_writer() {
    check_sleepers(1, gives_up_beside_a_writer);
}

/// The holder does not release the lock before the others have given up.
#[test]
fn spinners_give_up() {
    check_spinners(2, || {
        let lock = Arc::new(Lock::new(Prefer::Writers));
        lock.core.write(1 | HELD, lock.prefer, None);
        let other = lock.clone();
        let reader =
            thread::spawn(move || other.core.read(2 | HELD, other.prefer, Some(End::Monotonic(1))));
        assert!(!lock.core.write(3 | HELD, lock.prefer, Some(End::Monotonic(1))));
        assert!(!reader.join().unwrap());
    });
}

/// A reader that does not leave before another reader has come. Both find the lock held for
/// writing.
fn depends() {
    let prefer = Prefer::Readers;
    let lock = Arc::new(Lock::new(prefer));
    lock.core.write(1 | HELD, prefer, None);
    let other = lock.clone();
    let reader = thread::spawn(move || other.read(2));
    let other = lock.clone();
    let depending = thread::spawn(move || {
        other.core.read(3 | HELD, prefer, None);
        reader.join().unwrap();
        // SAFETY: locked above.
        unsafe { Core::unlock(&other.core, prefer) };
    });
    // SAFETY: locked above.
    unsafe { Core::write_unlock(&lock.core, prefer) };
    depending.join().unwrap();
    assert!(!lock.core.is_locked());
}

#[test]
fn a_reader_depends_on_another() {
    check_sleepers(2, depends);
}

/// A reader that is preferred and gives up leaves no writer asleep.
fn preferred_reader_gives_up() {
    gives_up(Prefer::Readers, |lock| {
        if lock.core.read(3 | HELD, lock.prefer, Some(End::Monotonic(1))) {
            lock.value.read();
            // SAFETY: locked above.
            unsafe { Core::unlock(&lock.core, lock.prefer) };
        }
    });
}

#[test]
fn a_preferred_reader_gives_up() {
    check_sleepers(2, preferred_reader_gives_up);
}

/// The child of a fork, where spinners of the parent do not count.
#[test]
fn child_of_a_fork() {
    let forked = |kinds| {
        let (core, prefer) = (Core::left(), Prefer::Writers);
        run(Lock { core, prefer, value: Protected::new() }, kinds);
    };
    check_sleepers(2, move || forked(&[true, true]));
    check_sleepers(2, move || forked(&[true, false]));
}

caught! {
    broken_writer_forgets_others: WriterForgetsOthers, check(2), threads(&[false, false, false]);
    broken_readers_forgotten: ReadersForgotten, check(2), threads(&[true, false, false]);
    broken_writers_forgotten: WritersForgotten, check(2),
        preferring(Prefer::Readers, &[true, false, false]);
    broken_bit_kept: BitKept, check(3), threads(&[false, false]);
    broken_freed_with_bit: FreedWithBit, check(4), vanishes(&[true, false], Prefer::Readers);
    broken_gives_up_with_bits: GivesUpWithBits, check_sleepers(2), gives_up_among_readers();
    broken_gives_up_alone: GivesUpAlone, check_sleepers(2), gives_up_among_readers();
}
