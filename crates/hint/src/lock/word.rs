// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutex in one word, which may vanish as soon as it is released: the C library's rules let the
//! next holder free the memory while the last one is still in its release. So a release is one
//! exchange, and nothing is touched after it. (The mutex of [`mutex`](super::mutex) looks at its
//! memory after it has released it; a Rust reference keeps that alive.)
//!
//! # State
//! 0, or who holds it, and [`PARKED`] if threads may sleep on the word. That is the futex mutex of
//! Drepper's "Futexes are tricky" with the holder's name in it, and waiters that spin by what the
//! holder does. `spinners` is touched by waiters only. To the child of a
//! fork both are right: at worst a release wakes nobody.
//!
//! # Nobody sleeps for ever
//! > **Invariant.** If a thread sleeps, the word has [`PARKED`], or a thread is awake that was
//! > woken by a release and will set it: by taking the lock with it, by sleeping, or by giving up.

use super::stamped::Stamped;
use crate::platform::end::End;
use crate::platform::sync::{AtomicU32, Futex, Ordering, broken};
use crate::wait::{self, Advice, Waiter, is_over};

const FREE: u32 = 0;
const PARKED: u32 = 1 << 30;

/// As glibc's mutex has it: `__lock`, `__owner`, its own `__kind`, and in place of a list that only
/// robust mutexes are in, the spinners.
#[repr(C)]
pub struct Word {
    word: Futex,
    _count: u32,
    /// The number of the thread that has or had the lock, for debuggers.
    pub(crate) owner: AtomicU32,
    _users: u32,
    _kind: [u32; 2],
    spinners: Stamped,
}

impl Word {
    #[cfg(loom)]
    pub(crate) fn new() -> Word {
        Word {
            word: Futex::new(FREE),
            _count: 0,
            owner: AtomicU32::new(0),
            _users: 0,
            _kind: [0; 2],
            spinners: Stamped::new(),
        }
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE
    }

    /// All zeros again. By the only thread that knows the lock.
    #[cfg(not(loom))]
    pub(crate) fn clear(&self) {
        self.word.store(FREE, Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        self.spinners.clear();
    }

    #[inline(always)]
    fn take(&self, as_word: u32) -> bool {
        self.word.compare_exchange(FREE, as_word, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self, me: u32) -> bool {
        self.take(me)
    }

    /// Waits at most until `end`, if there is one. Whether the lock was taken.
    #[inline(always)]
    pub(crate) fn lock(&self, me: u32, end: Option<End>) -> bool {
        self.take(me) || self.lock_slow(me, end)
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, me: u32, end: Option<End>) -> bool {
        let parked = self.word.load(Ordering::Relaxed) & PARKED != 0;
        if !parked && wait::quick(|| !self.is_locked() && self.take(me)) {
            return true;
        }
        if self.spinners.add().0 < wait::spinners() && self.spin(me, end) {
            self.spinners.sub();
            return true;
        }
        self.spinners.sub();
        // Once it has slept, others may: it does not know.
        let again = broken!(WokenForgetsOthers, me, me | PARKED);
        let mut slept = false;
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE {
                if self.take(again) {
                    return true;
                }
                continue;
            }
            if is_over(end) {
                if !slept || self.leave_parked(word) {
                    return false;
                }
                continue;
            }
            if !self.leave_parked(word) {
                continue;
            }
            self.word.wait_until(word | PARKED, end);
            slept = true;
            if self.spin(again, end) {
                return true;
            }
        }
    }

    /// Sets the bit, if the word is still `word` but for it.
    fn leave_parked(&self, word: u32) -> bool {
        let (change, relaxed) = (word | PARKED, Ordering::Relaxed);
        word == change || self.word.compare_exchange(word, change, relaxed, relaxed).is_ok()
    }

    /// Tries while that is better than to sleep, and the time is not over.
    fn spin(&self, as_word: u32, end: Option<End>) -> bool {
        let mut waiter = Waiter::new();
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE && self.take(as_word) {
                return true;
            }
            if waiter.look(|| word & !PARKED) == Advice::Sleep || is_over(end) {
                return false;
            }
        }
    }

    /// Releases the lock. By its holder.
    ///
    /// # Safety
    /// `lock` is a valid lock until the exchange.
    #[inline(always)]
    pub(crate) unsafe fn unlock(lock: *const Word) {
        // SAFETY: the caller's promise; afterwards, only the address counts.
        unsafe {
            let word = &raw const (*lock).word;
            if (*word).swap(FREE, Ordering::Release) & PARKED != 0 {
                Word::wake(word);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(word: *const Futex) {
        // SAFETY: of its memory, nothing is asked.
        unsafe { Futex::wake_at(word, 1) };
    }
}
