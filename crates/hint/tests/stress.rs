// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks under many threads, and what they owe to a thread that waits. Nothing here measures
//! time: each test waits for events, and would hang if one did not come.

use reprieve_hint::{Mutex, RwLock, RwSemaphore, SpinLock};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::scope;
use std::time::Duration;

const THREADS: usize = 8;
const SECTIONS: usize = 3_000;

/// Two counters that are equal outside of any section. Not atomic in fact: a lost update shows.
#[derive(Default)]
struct Pair(u64, u64);

impl Pair {
    fn step(&mut self, i: usize) {
        assert_eq!(self.0, self.1);
        self.0 = std::hint::black_box(self.0 + 1);
        if i % 64 == 0 {
            // Lose the CPU in the middle.
            std::thread::yield_now();
        }
        self.1 += 1;
    }
}

macro_rules! mutual_exclusion {
    ($($name:ident: $lock:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let lock = $lock::new(Pair::default());
                scope(|scope| {
                    for _ in 0..THREADS {
                        scope.spawn(|| (0..SECTIONS).for_each(|i| lock.lock().step(i)));
                    }
                });
                assert_eq!(lock.lock().0, (THREADS * SECTIONS) as u64);
            }
        )*
    };
}

mutual_exclusion! {
    mutex_excludes: Mutex;
    spin_lock_excludes: SpinLock;
}

macro_rules! readers_and_writers {
    ($($name:ident: $lock:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let lock = $lock::new(Pair::default());
                scope(|scope| {
                    for _ in 0..THREADS / 2 {
                        scope.spawn(|| (0..SECTIONS).for_each(|i| lock.write().step(i)));
                        scope.spawn(|| {
                            for _ in 0..SECTIONS {
                                let pair = lock.read();
                                assert_eq!(pair.0, pair.1);
                            }
                        });
                    }
                });
                assert_eq!(lock.read().0, (THREADS / 2 * SECTIONS) as u64);
            }
        )*
    };
}

readers_and_writers! {
    rw_lock_excludes: RwLock;
    rw_semaphore_excludes: RwSemaphore;
}

/// Timed waits give up and are given the lock in all mixtures.
#[test]
fn timed_waits() {
    let (mutex, rw) = (Mutex::new(Pair::default()), RwLock::new(Pair::default()));
    let (taken, written) = (AtomicU32::new(0), AtomicU32::new(0));
    scope(|scope| {
        for thread in 0..THREADS {
            let (mutex, rw, taken, written) = (&mutex, &rw, &taken, &written);
            scope.spawn(move || {
                for i in 0..SECTIONS {
                    let time = Duration::from_micros(if thread % 2 == 0 { 1_000_000 } else { 1 });
                    if let Some(mut pair) = mutex.try_lock_for(time) {
                        pair.step(i);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    if i % 2 == 0 {
                        if let Some(mut pair) = rw.try_write_for(time) {
                            pair.step(i);
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                    } else if let Some(pair) = rw.try_read_for(time) {
                        assert_eq!(pair.0, pair.1);
                    }
                }
            });
        }
    });
    assert_eq!(mutex.lock().0, u64::from(taken.into_inner()));
    assert_eq!(rw.write().0, u64::from(written.into_inner()));
}

/// A holder that sleeps: all who wait get the lock afterwards, and one that does not want to wait
/// gets away.
#[test]
fn a_sleeping_holder() {
    let mutex = Mutex::new(0);
    let rw = RwSemaphore::new(0);
    let held = Barrier::new(2);
    let go = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let (_mutex, _rw) = (mutex.lock(), rw.write());
            held.wait();
            while !go.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        held.wait();
        for _ in 0..4 {
            scope.spawn(|| *mutex.lock() += 1);
            scope.spawn(|| *rw.write() += 1);
        }
        assert!(mutex.try_lock_for(Duration::from_millis(5)).is_none());
        assert!(rw.try_read_for(Duration::from_millis(5)).is_none());
        go.store(true, Ordering::Release);
    });
    assert_eq!((*mutex.lock(), *rw.read()), (4, 4));
}

/// A writer that has given up keeps no reader out of a lock that readers hold.
#[test]
fn a_writer_gives_up() {
    let rw = RwLock::new(());
    let holder = rw.read();
    scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(rw.try_write_for(Duration::from_millis(50)).is_none()));
        }
    });
    assert!(rw.try_read().is_some());
    // A reader that comes while the writer waits gets in, too.
    scope(|scope| {
        scope.spawn(|| assert!(rw.try_write_for(Duration::from_millis(50)).is_none()));
        scope.spawn(|| drop(rw.read()));
    });
    drop(holder);
}

/// Threads that never let go for long do not keep another out for ever.
#[test]
fn nobody_starves() {
    let mutex = Mutex::new(());
    let done = AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(mutex.lock());
                }
            });
        }
        for _ in 0..20 {
            drop(mutex.lock());
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A thread that ends with a lock held keeps it, as with any lock; others can give up.
#[test]
fn a_dead_holder() {
    let mutex = Mutex::new(());
    scope(|scope| {
        scope.spawn(|| std::mem::forget(mutex.lock()));
    });
    assert!(mutex.is_locked());
    assert!(mutex.try_lock_for(Duration::from_millis(5)).is_none());
}
