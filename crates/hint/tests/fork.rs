// SPDX-License-Identifier: MIT OR Apache-2.0
//! The child of a fork uses locks for which threads of the parent waited.

#[path = "../../rcu/tests/common/beside.rs"]
mod beside;

use beside::beside;
use reprieve_hint::{Mutex, RwLock, RwSemaphore, SpinLock, current_thread, preemptable};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

const WAITERS: usize = 6;
const FORKS: u32 = 6;
/// Sections of each of the child's threads.
const SECTIONS: u32 = 2_000;

/// Runs `f` in a child, and waits until it has ended well. The child ends with this thread, should
/// the test be killed.
fn in_child(f: impl FnOnce()) {
    // SAFETY: the child runs `f` and ends, without running what the parent would on its way out.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            libc::_exit(i32::from(done.is_err()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
}

/// Its hints and its locks go on in the child, and in a child of a child that gives no hint.
#[test]
fn the_forking_thread_stays_itself() {
    let section = preemptable();
    let me = current_thread();
    in_child(|| {
        in_child(|| assert_eq!(current_thread(), me));
        // Another thread first.
        scope(|scope| scope.spawn(|| assert_ne!(current_thread(), me)).join().unwrap());
        assert_eq!(current_thread(), me);
        drop(section);
    });
}

/// A lock with a counter that is not atomic.
trait Counter: Sync {
    type Guard<'a>
    where
        Self: 'a;
    fn new() -> Self;
    fn lock(&self) -> Self::Guard<'_>;
    /// The new count.
    fn step(guard: &mut Self::Guard<'_>) -> u32;
    /// In another way, if the lock has one.
    fn look(&self) {
        drop(self.lock());
    }
}

macro_rules! counter {
    ($($lock:ident: $guard:ident, $take:ident $(, $look:ident)?;)*) => {
        $(impl Counter for $lock<u32> {
            type Guard<'a> = reprieve_hint::$guard<'a, u32>;
            fn new() -> Self {
                $lock::new(0)
            }
            fn lock(&self) -> Self::Guard<'_> {
                self.$take()
            }
            fn step(guard: &mut Self::Guard<'_>) -> u32 {
                let before = **guard;
                if before % 64 == 0 {
                    // Lose the CPU in the middle.
                    std::thread::yield_now();
                }
                **guard = before + 1;
                before + 1
            }
            $(fn look(&self) {
                drop(self.$look());
            })?
        })*
    };
}

counter! {
    Mutex: MutexGuard, lock;
    SpinLock: SpinLockGuard, lock;
    RwLock: RwLockWriteGuard, write, read;
    RwSemaphore: RwSemaphoreWriteGuard, write, read;
}

/// The child's threads share the lock, the one that forked and two that are new.
fn use_lock<L: Counter>(lock: &L, mut held: L::Guard<'_>) {
    let start = L::step(&mut held);
    let work = || {
        for _ in 0..SECTIONS {
            L::step(&mut lock.lock());
            lock.look();
        }
    };
    beside(&[&work, &work], || {
        // The child's threads wait behind the parent's.
        std::thread::sleep(Duration::from_millis(1));
        drop(held);
        for _ in 0..SECTIONS {
            L::step(&mut lock.lock());
        }
    });
    assert_eq!(L::step(&mut lock.lock()), start + 3 * SECTIONS + 1);
}

fn forks<L: Counter>() {
    let lock = L::new();
    let done = AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..WAITERS {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    L::step(&mut lock.lock());
                    lock.look();
                }
            });
        }
        for round in 0..FORKS {
            let held = lock.lock();
            // Spinning, parked, on their way: at a time that differs.
            std::thread::sleep(Duration::from_micros(u64::from(round % 5) * 300));
            let mut held = Some(held);
            in_child(|| {
                use_lock(&lock, held.take().unwrap());
                // A child of the child.
                let held = lock.lock();
                let mut held = Some(held);
                in_child(|| use_lock(&lock, held.take().unwrap()));
            });
            drop(held);
        }
        done.store(true, Ordering::Relaxed);
    });
}

macro_rules! forks {
    ($($name:ident: $lock:ident;)*) => {
        $(
            #[test]
            fn $name() {
                forks::<$lock<u32>>();
            }
        )*
    };
}

forks! {
    mutex: Mutex;
    spin_lock: SpinLock;
    rw_lock: RwLock;
    rw_semaphore: RwSemaphore;
}
