// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics, a lock and a wait, in two forms: the real ones, and loom's for the models in `model/`. The protocols above are one source.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

use std::time::Duration;

/// `std`'s, with loom's way in.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Runs a `const fn` in the real build only: loom's atomics have no const constructors.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty $body:block) => {
        #[cfg(not(loom))]
        $(#[$meta])* $vis const fn $name($($arg: $ty),*) -> $ret $body
        #[cfg(loom)]
        $(#[$meta])* $vis fn $name($($arg: $ty),*) -> $ret $body
    };
}
pub(crate) use const_unless_loom;

/// Sleeps while `*word == expected`, at most `timeout`. May return early.
#[cfg(not(loom))]
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    crate::sys::futex_wait(word, expected, timeout);
}

#[cfg(loom)]
pub(crate) fn wait(_: &AtomicU32, _: u32, _: Option<Duration>) {
    loom::thread::yield_now();
}

/// Wakes every thread in [`wait`] on `word`.
#[cfg(not(loom))]
pub(crate) fn wake_all(word: &AtomicU32) {
    crate::sys::futex_wake(word, i32::MAX);
}

/// Wakes those that have waited longest.
#[cfg(not(loom))]
pub(crate) fn wake_some(word: &AtomicU32, threads: i32) {
    crate::sys::futex_wake(word, threads);
}

#[cfg(loom)]
pub(crate) fn wake_all(_: &AtomicU32) {}

/// Counts down, unless the count was set to 0 meanwhile: in the child of a fork, for whom nobody waits.
pub(crate) fn decrement(count: &AtomicU32) {
    let less = |count: u32| count.checked_sub(1);
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// What one thread sleeps on until another has work for it.
pub(crate) struct Bell {
    event: AtomicU32,
    asleep: AtomicU32,
    /// A model's futex: it finds out who sleeps for ever.
    #[cfg(loom)]
    futex: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Bell {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Bell {
        Bell { event: AtomicU32::new(0), asleep: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Bell {
        let futex = (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
        Bell { event: AtomicU32::new(0), asleep: AtomicU32::new(0), futex }
    }

    /// To be read before looking for work.
    pub(crate) fn event(&self) -> u32 {
        self.event.load(Ordering::SeqCst)
    }

    /// Sleeps unless it has rung since `event` was read. At most `time`; may return early.
    pub(crate) fn sleep(&self, event: u32, time: Option<Duration>) {
        // Pairs with `ring`: either it sees the sleeper or the kernel sees the new event.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        self.wait(event, time);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn ring(&self) {
        self.event.fetch_add(1, Ordering::SeqCst);
        // The checker takes sequentially consistent accesses for less.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    #[cfg(not(loom))]
    fn wait(&self, event: u32, time: Option<Duration>) {
        wait(&self.event, event, time);
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        wake_all(&self.event);
    }

    /// In a model nobody wakes for no reason.
    #[cfg(loom)]
    fn wait(&self, event: u32, time: Option<Duration>) {
        if time.is_some() {
            return loom::thread::yield_now();
        }
        fence(Ordering::SeqCst);
        let mut guard = self.futex.0.lock().unwrap();
        while self.event() == event {
            guard = self.futex.1.wait(guard).unwrap();
        }
    }

    #[cfg(loom)]
    fn wake(&self) {
        drop(self.futex.0.lock().unwrap());
        self.futex.1.notify_all();
    }

    /// In the child of a fork: nobody sleeps.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}

/// A mutual-exclusion lock without an owner: the child of a fork may reset it when its holder did not come along.
pub(crate) struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep on it.
const CONTENDED: u32 = 2;

impl Lock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    pub(crate) fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn lock(&self) {
        self.lock_for(None);
    }

    /// Waits at most `timeout` (for ever without one); tells whether the lock was taken.
    pub(crate) fn lock_for(&self, timeout: Option<Duration>) -> bool {
        if self.try_lock() {
            return true;
        }
        let end = timeout.map(|t| std::time::Instant::now() + t);
        while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
            let left = match end {
                None => None,
                Some(end) => match end.checked_duration_since(std::time::Instant::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => return false,
                },
            };
            wait(&self.0, CONTENDED, left);
        }
        true
    }

    pub(crate) fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            wake_all(&self.0);
        }
    }

    /// Makes the lock free whoever held it. Only for the child of a fork, where the holder does not exist.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.0.store(FREE, Ordering::Relaxed);
    }
}
