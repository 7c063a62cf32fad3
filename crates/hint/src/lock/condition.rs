// SPDX-License-Identifier: MIT OR Apache-2.0
//! The condition variable of the preload shim: a count of signals, which threads sleep on.
//!
//! A waiter reads the count before it releases the mutex, and sleeps if the count is still the
//! same. A signal adds to the count, then wakes one sleeper. So a thread that waits when the signal
//! comes wakes up, or does not sleep. The kernel wakes the thread that has slept longest (of equal
//! priority), so a thread that comes after the signal does not take the wake-up of one that slept.
//! Bionic has used the same for years. Waiters may wake without a signal, as POSIX allows.
//!
//! # Destruction
//! POSIX lets a thread that has signalled all waiters destroy the condition and reuse its memory at
//! once. A waiter may be between the release of the mutex and its sleep then, and would take what
//! lies there for the count.
//!
//! > **Invariant.** A thread touches the condition's memory, or has the kernel do so, only while it
//! > is counted in `waiters`, and [`Condition::destroy`] returns when that is 0.
//!
//! A waiter counts itself while it holds the mutex, so whoever destroys the condition afterwards
//! sees it, and its last access is the exchange that takes it out again. If it finds
//! [`DESTROYED`] there and is the last, it wakes the destroyer by the address alone.
//!
//! # Signals that nobody waits for
//! > **Invariant.** Whoever signals because of what it wrote under the mutex finds each thread
//! > counted that did not see it.
//!
//! For that thread has counted itself before it released the mutex. So a signal that finds nobody
//! counted does nothing.
//!
//! # Cancelled threads
//! The shim ends a cancelled thread in its sleep, where it [leaves](Condition::leave) as others do.
//! It may have been woken by a signal just before, so it first signals in turn.
//!
//! # Forks
//! The child of a fork has none of its parent's waiters: the count is that of the process whose
//! epoch stands beside it. The first waiter of the child starts a new one, under the mutex, when
//! nobody in the child is counted.

use crate::platform::end::End;
use crate::platform::fork;
use crate::platform::sync::{AtomicU32, Futex, Ordering, broken};
use std::time::Duration;

const DESTROYED: u32 = 1 << 31;

/// A condition variable, in 16 bytes that all zeros make ready.
#[repr(C)]
pub struct Condition {
    signals: Futex,
    /// The clock of timed waits, 0 being the usual one. For the shim.
    pub clock: AtomicU32,
    /// In which process `waiters` counts (`platform/fork.rs`).
    epoch: AtomicU32,
    waiters: Futex,
}

impl Condition {
    /// How long a thread sleeps that nobody will signal.
    pub const NAP: Duration = Duration::from_millis(1);

    #[cfg(loom)]
    pub(crate) fn new() -> Condition {
        Condition {
            signals: Futex::new(0),
            clock: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            waiters: Futex::new(0),
        }
    }

    /// As a process before this one left it.
    #[cfg(all(loom, test))]
    pub(crate) fn left(waiters: u32) -> Condition {
        let (epoch, waiters) = (AtomicU32::new(fork::epoch() - 1), Futex::new(waiters));
        Condition { epoch, waiters, ..Condition::new() }
    }

    /// The memory with nothing in it, as its next owner may clear it.
    #[cfg(all(loom, test))]
    pub(crate) fn reuse(&self) {
        self.signals.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
    }

    /// Wakes that many of the threads that wait.
    pub fn signal(&self, threads: i32) {
        if self.waiters() == 0 {
            return;
        }
        self.signals.fetch_add(1, Ordering::SeqCst);
        self.signals.wake(threads);
    }

    fn waiters(&self) -> u32 {
        let here = self.epoch.load(Ordering::Relaxed) == fork::epoch();
        let waiters = self.waiters.load(Ordering::Relaxed) & !DESTROYED;
        broken!(SignalsUnseen, 0, if here { waiters } else { 0 })
    }

    /// Begins to wait: the caller counts until it [leaves](Condition::leave). What to sleep for.
    ///
    /// The caller holds the mutex.
    pub fn enter(&self) -> u32 {
        let epoch = fork::epoch();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            self.waiters.store(0, Ordering::Relaxed);
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        self.waiters.fetch_add(1, Ordering::AcqRel);
        self.signals.load(Ordering::SeqCst)
    }

    /// The word that a thread that has entered sleeps on, while it is what it was then.
    #[inline]
    pub(crate) fn signals(&self) -> &Futex {
        &self.signals
    }

    /// The same, for the shim.
    #[cfg(not(loom))]
    pub fn word(&self) -> *const u32 {
        self.signals.as_ptr()
    }

    /// Sleeps unless there was a signal since the caller [entered](Condition::enter), at most until
    /// `end`, and leaves. False if the time is over.
    ///
    /// # Safety
    /// The caller has entered the condition, which is valid until it has left.
    pub unsafe fn sleep(condition: *const Condition, entered: u32, end: Option<End>) -> bool {
        // SAFETY: the caller's promise; it leaves once.
        unsafe {
            if broken!(LeavesBeforeSleeping, true, false) {
                Condition::leave(condition);
            }
            let in_time = (*condition).signals().wait_until(entered, end);
            if broken!(LeavesBeforeSleeping, false, true) {
                Condition::leave(condition);
            }
            in_time
        }
    }

    /// Undoes [`Condition::enter`]. The memory may be another's when this returns.
    ///
    /// # Safety
    /// The caller has entered the condition, which is valid until it has left.
    pub unsafe fn leave(condition: *const Condition) {
        // SAFETY: the caller's promise; after the subtraction, only the address counts.
        unsafe {
            let waiters = &raw const (*condition).waiters;
            let before = (*waiters).fetch_sub(1, Ordering::AcqRel);
            if broken!(LastWakesNobody, false, before == DESTROYED | 1) {
                Futex::wake_at(waiters, 1);
            }
        }
    }

    /// Waits until all threads have left. Nobody should wait any more who was neither signalled nor
    /// cancelled.
    pub fn destroy(&self) {
        if broken!(DestroyedAtOnce, true, self.epoch.load(Ordering::Relaxed) != fork::epoch()) {
            return;
        }
        let mut waiters = self.waiters.fetch_or(DESTROYED, Ordering::AcqRel) | DESTROYED;
        while waiters != DESTROYED {
            self.waiters.wait(waiters, None);
            waiters = self.waiters.load(Ordering::Acquire);
        }
    }
}
