// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics and the futex in two forms: the real ones, and loom's for the models in `model/`. The
//! protocols above are one source.

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

/// `std`'s, with the access method of loom's.
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
    crate::platform::sys::futex_wait(word, expected, timeout);
}

#[cfg(loom)]
pub(crate) fn wait(_: &AtomicU32, _: u32, _: Option<Duration>) {
    loom::thread::yield_now();
}

/// Wakes every thread in [`wait`] on `word`.
#[cfg(not(loom))]
pub(crate) fn wake_all(word: &AtomicU32) {
    crate::platform::sys::futex_wake(word, i32::MAX);
}

/// Wakes the threads that have waited longest.
#[cfg(not(loom))]
pub(crate) fn wake_some(word: &AtomicU32, threads: i32) {
    crate::platform::sys::futex_wake(word, threads);
}

#[cfg(loom)]
pub(crate) fn wake_all(_: &AtomicU32) {}

#[cfg(loom)]
pub(crate) fn wake_some(_: &AtomicU32, _: i32) {}
