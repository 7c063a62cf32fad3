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
//! # Cancelled threads
//! A program may also destroy a condition for which only cancelled threads wait: in the C library
//! they leave it by themselves. Here the destroyer wakes them, once.
//!
//! > **Invariant.** Whoever is counted when the condition becomes [`DESTROYED`] is woken. Whoever
//! > counts itself later finds that, and does not sleep for a signal. A cancelled thread that finds
//! > it as it leaves does not come back.
//!
//! The waiter reads the count of signals before it counts itself: if it does not find `DESTROYED`,
//! the destroyer's signal is still to come.
//!
//! Whoever comes back may find another's memory, so the shim ends a cancelled thread as it leaves,
//! and before it enters. For threads that are not cancelled the destroyer waits while they are
//! counted, as in the C library; a program that destroys a condition under them is wrong.
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

/// What a waiter found as it entered.
#[derive(Clone, Copy)]
pub struct Entered {
    signals: u32,
    destroyed: bool,
}

/// How a waiter woke up.
#[derive(Clone, Copy)]
pub struct Woken {
    /// The time is not over.
    pub in_time: bool,
    /// The condition was destroyed while the thread waited: its memory may be another's.
    pub destroyed: bool,
}

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
        self.signals.fetch_add(1, Ordering::SeqCst);
        self.signals.wake(threads);
    }

    /// Begins to wait: the caller counts until it [leaves](Condition::leave). What to sleep for.
    ///
    /// The caller holds the mutex.
    pub fn enter(&self) -> Entered {
        let epoch = fork::epoch();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            self.waiters.store(0, Ordering::Relaxed);
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        let early = self.signals.load(Ordering::SeqCst);
        let waiters = self.waiters.fetch_add(1, Ordering::AcqRel);
        let signals = broken!(CountsFirst, self.signals.load(Ordering::SeqCst), early);
        Entered { signals, destroyed: broken!(EntersUntold, false, waiters & DESTROYED != 0) }
    }

    /// Sleeps unless there was a signal since the caller [entered](Condition::enter), at most until
    /// `end`, and leaves.
    ///
    /// # Safety
    /// The caller has entered the condition, which is valid until it has left.
    pub unsafe fn sleep(condition: *const Condition, entered: Entered, end: Option<End>) -> Woken {
        let naps = entered.destroyed && end.is_none_or(|end| end.left() > Condition::NAP);
        let end = if naps { Some(End::after(Condition::NAP)) } else { end };
        // SAFETY: the caller's promise; it leaves once.
        unsafe {
            if broken!(LeavesBeforeSleeping, true, false) {
                Condition::leave(condition);
            }
            let in_time = (*condition).signals.wait_until(entered.signals, end) || naps;
            let destroyed =
                broken!(LeavesBeforeSleeping, false, true) && Condition::leave(condition);
            Woken { in_time, destroyed }
        }
    }

    /// Undoes [`Condition::enter`]. Whether the condition is destroyed. The memory may be another's
    /// when this returns.
    ///
    /// # Safety
    /// The caller has entered the condition, which is valid until it has left.
    pub unsafe fn leave(condition: *const Condition) -> bool {
        // SAFETY: the caller's promise; after the subtraction, only the address counts.
        let before = unsafe {
            let waiters = &raw const (*condition).waiters;
            let before = (*waiters).fetch_sub(1, Ordering::AcqRel);
            if broken!(LastWakesNobody, false, before == DESTROYED | 1) {
                Futex::wake_at(waiters, 1);
            }
            before
        };
        broken!(LeavesUntold, false, before & DESTROYED != 0)
    }

    /// Waits until all threads have left. Nobody should wait any more who was neither signalled nor
    /// cancelled.
    pub fn destroy(&self) {
        if broken!(DestroyedAtOnce, true, self.epoch.load(Ordering::Relaxed) != fork::epoch()) {
            return;
        }
        let mut waiters = self.waiters.fetch_or(DESTROYED, Ordering::AcqRel) | DESTROYED;
        if broken!(DestroyedUnheard, false, waiters != DESTROYED) {
            self.signal(i32::MAX);
        }
        while waiters != DESTROYED {
            self.waiters.wait(waiters, None);
            waiters = self.waiters.load(Ordering::Acquire);
        }
    }
}
