// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics and the futex in two forms: the real ones, and loom's for the models in `model/`. The
//! protocols above are one source.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::end::End;
use std::ops::Deref;
use std::time::Duration;

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

/// The last of the arguments; in a model that is to break the protocol in the way named first, the
/// second.
macro_rules! broken {
    ($how:ident, $broken:expr, $right:expr) => {{
        #[cfg(loom)]
        let value = if $crate::platform::env::broken($crate::platform::env::How::$how) {
            $broken
        } else {
            $right
        };
        #[cfg(not(loom))]
        let value = $right;
        value
    }};
}
pub(crate) use broken;

/// A word that threads sleep on.
#[repr(transparent)]
pub(crate) struct Futex(#[cfg(not(loom))] AtomicU32, #[cfg(loom)] model::Word);

impl Deref for Futex {
    type Target = AtomicU32;
    fn deref(&self) -> &AtomicU32 {
        #[cfg(not(loom))]
        return &self.0;
        #[cfg(loom)]
        return &self.0.word;
    }
}

#[cfg(not(loom))]
impl Futex {
    pub(crate) const fn new(value: u32) -> Futex {
        Futex(AtomicU32::new(value))
    }

    /// Sleeps while the word is `expected`, at most `time`. May return early. False if the time is
    /// over.
    pub(crate) fn wait(&self, expected: u32, time: Option<Duration>) -> bool {
        super::sys::futex_wait(&self.0, expected, time)
    }

    /// The same until `end`.
    pub(crate) fn wait_until(&self, expected: u32, end: Option<End>) -> bool {
        super::sys::futex_wait_until(&self.0, expected, end)
    }

    /// Wakes at most that many threads, the longest-waiting ones. Whether there was one.
    pub(crate) fn wake(&self, threads: i32) -> bool {
        super::sys::futex_wake(&self.0, threads)
    }

    /// [`Futex::wake`] for a word that may belong to somebody else, or to nobody, by now.
    ///
    /// # Safety
    /// None of memory: the kernel takes any address.
    pub(crate) unsafe fn wake_at(futex: *const Futex, threads: i32) -> bool {
        super::sys::futex_wake_at(futex.cast(), threads)
    }
}

#[cfg(loom)]
impl Futex {
    pub(crate) fn new(value: u32) -> Futex {
        Futex(model::Word::new(value))
    }

    pub(crate) fn wait(&self, expected: u32, time: Option<Duration>) -> bool {
        if time.is_some() {
            super::env::time_passes();
            return false;
        }
        self.0.wait(expected);
        true
    }

    pub(crate) fn wait_until(&self, expected: u32, end: Option<End>) -> bool {
        self.wait(expected, end.map(|_| Duration::ZERO))
    }

    pub(crate) fn wake(&self, threads: i32) -> bool {
        self.0.wake(threads)
    }

    /// As the real one; in models, words outlive their threads.
    pub(crate) unsafe fn wake_at(futex: *const Futex, threads: i32) -> bool {
        // SAFETY: a model's words are not freed before its end.
        unsafe { (*futex).wake(threads) }
    }
}

/// A futex of a model: no thread wakes without a reason, so one that nobody wakes is a deadlock
/// that the checker reports.
#[cfg(loom)]
mod model {
    use super::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    pub(crate) struct Word {
        pub(crate) word: AtomicU32,
        /// The number of the next sleeper, and those that sleep, in the order in which they came.
        state: Mutex<(u32, Vec<u32>)>,
        condvar: Condvar,
    }

    impl Word {
        pub(crate) fn new(value: u32) -> Word {
            Word {
                word: AtomicU32::new(value),
                state: Mutex::new((0, vec![])),
                condvar: Condvar::new(),
            }
        }

        pub(crate) fn wait(&self, expected: u32) {
            let mut state = self.state.lock().unwrap();
            // The kernel compares under the lock of its queue, and reads what is in memory, not a
            // stale value: a read-modify-write does.
            if self.word.fetch_add(0, Ordering::SeqCst) != expected {
                return;
            }
            let me = state.0;
            state.0 += 1;
            state.1.push(me);
            while state.1.contains(&me) {
                state = self.condvar.wait(state).unwrap();
            }
        }

        pub(crate) fn wake(&self, threads: i32) -> bool {
            let mut state = self.state.lock().unwrap();
            let woken = state.1.len().min(threads as usize);
            state.1.drain(..woken);
            drop(state);
            self.condvar.notify_all();
            woken != 0
        }
    }
}
