// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader-writer lock and semaphore: many readers or one writer. Writers go first, or in the
//! C library's place ([`Prefer::Readers`]) readers.
//!
//! # State
//! The protocol of Rust's standard library (`std::sync::RwLock` on futexes): the low 30 bits of
//! `state` count readers, or are all ones for a writer; two bits say that readers or writers sleep.
//! Readers sleep on `state`, writers on `writers`, a count of wake-ups. What is added is `owner`,
//! the writer or the reader that came last, and waiting by what that thread does.
//!
//! # Nobody sleeps for ever
//! > **Invariant.** If a thread sleeps, its bit is set, or the thread that cleared the bit has not
//! > woken it yet. If the lock is free and a bit is set, a release has not woken anybody yet, or a
//! > thread that was woken is on its way to take the lock.
//!
//! In the child of a fork, a release of the parent's that had freed the lock wakes nobody any more:
//! the first thread that has to wait does so in its place, before it sleeps. From then on, threads
//! of the child free the lock, and wake as above. Readers of the parent's keep the lock.
//!
//! A thread sets its bit by compare-and-swap while the lock is held. The release that finds the
//! lock free and the bits set wakes one writer and leaves the readers' bit, or all readers if no
//! writer slept. A writer that wakes up sets the writers' bit again as it takes the lock: others
//! may sleep still.
//!
//! # Readers first
//! > **Invariant.** With [`Prefer::Readers`], no reader sleeps while others read, but one that is
//! > about to be woken.
//!
//! For a reader that has the lock may wait for one that has not. A reader sets the readers' bit
//! while a writer holds the lock. The writer's release wakes all readers and leaves the writers'
//! bit to the last of them, or wakes a writer if no reader slept. A reader that enters before that
//! clears the readers' bit with the same exchange, and wakes them in place of the release.

use super::stamped::Stamped;
use crate::platform::sync::{AtomicU32, Futex, Ordering, broken, const_unless_loom};
use crate::wait::{self, Advice, Waiter, left};

const READER: u32 = 1;
const COUNT: u32 = (1 << 30) - 1;
const WRITER: u32 = COUNT;
/// One less than a writer's is never reached: there are not that many threads.
const MOST_READERS: u32 = COUNT - 1;
const READERS_SLEEP: u32 = 1 << 30;
const WRITERS_SLEEP: u32 = 1 << 31;

fn free(state: u32) -> bool {
    state & COUNT == 0
}

/// Whose turn it is when readers hold the lock and writers wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    Writers,
    /// A reader may enter again while it reads, whoever waits.
    Readers,
}

impl Prefer {
    fn readable(self, state: u32) -> bool {
        let bits = if self == Prefer::Writers { READERS_SLEEP | WRITERS_SLEEP } else { 0 };
        state & COUNT < MOST_READERS && state & bits == 0
    }

    /// The bit that a reader clears as it enters, to wake those that slept.
    fn joined(self) -> u32 {
        match self {
            // It does not enter while the bit is set.
            Prefer::Writers => 0,
            Prefer::Readers => broken!(EnteringWakesNobody, 0, READERS_SLEEP),
        }
    }
}

#[repr(C)]
pub(crate) struct Core {
    state: Futex,
    writers: Futex,
    owner: AtomicU32,
    _pad: u32,
    /// Threads that spin: no more than there are CPUs for.
    spinners: Stamped,
}

impl Core {
    const_unless_loom! {
        pub(crate) fn new() -> Core {
            Core {
                state: Futex::new(0),
                writers: Futex::new(0),
                owner: AtomicU32::new(0),
                _pad: 0,
                spinners: Stamped::new()
            }
        }
    }

    /// As a fork leaves it to the child: free, but for the bits of threads that slept.
    #[cfg(all(loom, test))]
    pub(crate) fn left(readers: bool, writers: bool) -> Core {
        let bits = u32::from(readers) * READERS_SLEEP | u32::from(writers) * WRITERS_SLEEP;
        Core { state: Futex::new(bits), spinners: Stamped::left(1), ..Core::new() }
    }

    pub(crate) fn is_locked(&self) -> bool {
        !free(self.state.load(Ordering::Relaxed))
    }

    pub(crate) fn is_locked_exclusive(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COUNT == WRITER
    }

    #[inline]
    pub(crate) fn try_read(&self, me: u32, prefer: Prefer) -> bool {
        let enter = |state| prefer.readable(state).then(|| (state & !prefer.joined()) + READER);
        let taken = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter);
        let Ok(before) = taken else { return false };
        self.owner.store(me, Ordering::Relaxed);
        if before & prefer.joined() != 0 {
            self.wake_readers();
        }
        true
    }

    #[inline]
    pub(crate) fn read(&self, me: u32, prefer: Prefer) {
        if !self.try_read(me, prefer) {
            self.read_slow(me, prefer, None);
        }
    }

    /// Waits at most until `end`, in ns of [`wait::now`]. Whether the lock was taken.
    pub(crate) fn read_until(&self, me: u32, prefer: Prefer, end: u64) -> bool {
        self.try_read(me, prefer) || self.read_slow(me, prefer, Some(end))
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&self, me: u32, prefer: Prefer, end: Option<u64>) -> bool {
        loop {
            let done =
                |state| prefer.readable(state) || state & (READERS_SLEEP | WRITERS_SLEEP) != 0;
            let state = self.spin(done);
            if self.try_read(me, prefer) {
                return true;
            }
            let Some(left) = left(end) else { return false };
            if prefer.readable(state) {
                continue;
            }
            let bit = state | READERS_SLEEP;
            if state & READERS_SLEEP == 0 && !self.change(state, bit) {
                continue;
            }
            self.state.wait(bit, left);
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// # Safety
    /// The caller holds the lock for reading.
    #[inline]
    pub(crate) unsafe fn read_unlock(&self) {
        let state = self.state.fetch_sub(READER, Ordering::Release) - READER;
        if free(state) && state != 0 {
            // Where readers are preferred, none sleeps.
            self.wake(state, Prefer::Writers);
        }
    }

    #[inline]
    pub(crate) fn try_write(&self, me: u32) -> bool {
        let taken = self.try_write_with(0);
        if taken {
            self.owner.store(me, Ordering::Relaxed);
        }
        taken
    }

    /// Takes the lock if it is free; sets the bits.
    #[inline]
    fn try_write_with(&self, bits: u32) -> bool {
        let take = |state| free(state).then_some(state | WRITER | bits);
        self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, take).is_ok()
    }

    #[inline]
    pub(crate) fn write(&self, me: u32) {
        // Without a look at the state first, which would wait for the last release.
        let change = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(0, WRITER, change.0, change.1).is_ok() {
            self.owner.store(me, Ordering::Relaxed);
        } else if !self.try_write(me) {
            self.write_slow(me, None);
        }
    }

    /// Waits at most until `end`, in ns of [`wait::now`]. Whether the lock was taken.
    pub(crate) fn write_until(&self, me: u32, end: u64) -> bool {
        self.try_write(me) || self.write_slow(me, Some(end))
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&self, me: u32, end: Option<u64>) -> bool {
        // Once it has slept: there may be others.
        let mut bits = 0;
        loop {
            let state = self.spin(|state| free(state) || state & WRITERS_SLEEP != 0);
            if self.try_write_with(bits) {
                self.owner.store(me, Ordering::Relaxed);
                return true;
            }
            let Some(left) = left(end) else {
                // It may have been woken in the place of another writer.
                if bits == 0 || self.leave_bit() {
                    return false;
                }
                continue;
            };
            if free(state)
                || state & WRITERS_SLEEP == 0 && !self.change(state, state | WRITERS_SLEEP)
            {
                continue;
            }
            bits = broken!(WriterForgetsOthers, 0, WRITERS_SLEEP);
            let turn = self.writers.load(Ordering::Acquire);
            let state = self.state.load(Ordering::Relaxed);
            if free(state) || state & WRITERS_SLEEP == 0 {
                continue;
            }
            self.writers.wait(turn, left);
        }
    }

    /// Sets the writers' bit, unless the lock is free.
    fn leave_bit(&self) -> bool {
        let set = |state| (!free(state)).then_some(state | WRITERS_SLEEP);
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set).is_ok()
    }

    /// # Safety
    /// The caller holds the lock for writing.
    #[inline]
    pub(crate) unsafe fn write_unlock(&self, prefer: Prefer) {
        let state = self.state.fetch_sub(WRITER, Ordering::Release) - WRITER;
        if state != 0 {
            self.wake(state, prefer);
        }
    }

    /// Whether one slept. The caller has cleared their bit.
    #[cold]
    #[inline(never)]
    fn wake_readers(&self) -> bool {
        self.state.wake(i32::MAX)
    }

    /// The lock was free with that state. Wakes a writer, or else the readers; the other way round
    /// if readers are preferred. Another thread may have taken it: then it will wake them, except
    /// where the bits were cleared here.
    #[cold]
    #[inline(never)]
    fn wake(&self, mut state: u32, prefer: Prefer) {
        debug_assert!(free(state));
        if prefer == Prefer::Readers && state & READERS_SLEEP != 0 {
            // The writers' bit stays, so that the last reader's release finds it.
            if !self.change(state, state & !READERS_SLEEP) || self.wake_readers() {
                return;
            }
            // The readers had given up, or have not slept yet. Writers must not wait for them.
            state &= broken!(WritersForgotten, 0, !READERS_SLEEP);
            if state == 0 {
                return;
            }
        }
        if state & WRITERS_SLEEP != 0 {
            // The readers' bit stays, so that the writer's release finds it.
            if !self.change(state, state & !WRITERS_SLEEP) {
                // Taken, or the other bit was set meanwhile.
                let now = self.state.load(Ordering::Relaxed);
                if free(now) && now & WRITERS_SLEEP != 0 && now != state {
                    self.wake(now, prefer);
                }
                return;
            }
            self.writers.fetch_add(1, Ordering::Release);
            let woken = self.writers.wake(1);
            if woken || state & READERS_SLEEP == 0 || broken!(ReadersForgotten, true, false) {
                return;
            }
            // The writer had given up, or has not slept yet. Readers must not wait for it.
        }
        if self.change(READERS_SLEEP, 0) {
            self.wake_readers();
        }
    }

    /// Waits until `done`, or until it is better to sleep. The state then.
    fn spin(&self, done: impl Fn(u32) -> bool) -> u32 {
        if let Some(state) = self.spin_quick(&done) {
            return state;
        }
        let (before, first) = self.spinners.add();
        if broken!(FirstWakesNobody, false, first) {
            let state = self.state.load(Ordering::Relaxed);
            if free(state) && state != 0 {
                // Where readers are preferred, none sleeps for a lock that is free.
                self.wake(state, Prefer::Writers);
            }
        }
        let admitted = before < wait::spinners();
        let state = if admitted { self.spin_on(done) } else { self.state.load(Ordering::Relaxed) };
        self.spinners.sub();
        state
    }

    /// The state, if it was `done` after a moment. Only where nobody sleeps: after a fork somebody
    /// has to find out who is left to be woken.
    fn spin_quick(&self, done: &impl Fn(u32) -> bool) -> Option<u32> {
        const SLEEP: u32 = READERS_SLEEP | WRITERS_SLEEP;
        let mut state = self.state.load(Ordering::Relaxed);
        if broken!(QuickForGhosts, false, state & SLEEP != 0) {
            return None;
        }
        let taken = wait::quick(|| {
            state = self.state.load(Ordering::Relaxed);
            done(state)
        });
        (taken && broken!(QuickForGhosts, true, state & SLEEP == 0)).then_some(state)
    }

    fn spin_on(&self, done: impl Fn(u32) -> bool) -> u32 {
        let mut waiter = Waiter::new();
        loop {
            let state = self.state.load(Ordering::Relaxed);
            let holder = if state & COUNT == WRITER || state & COUNT == 1 {
                self.owner.load(Ordering::Relaxed)
            } else {
                0
            };
            if done(state) || waiter.look(|| holder) == Advice::Sleep {
                return state;
            }
        }
    }
}

#[cfg(not(loom))]
pub use raw::RawRwLock;

#[cfg(not(loom))]
mod raw {
    use super::{Core, Prefer};
    use crate::lock::mark::{self, Mark};
    use crate::platform::sys;
    use crate::thread::{self, Line};
    use crate::wait::{self, HELD};
    use std::marker::PhantomData;
    use std::time::{Duration, Instant};

    /// The reader-writer lock and semaphore, for `lock_api`.
    #[repr(transparent)]
    pub struct RawRwLock<M>(pub(crate) Core, PhantomData<M>);

    // SAFETY: as `M` is never made.
    unsafe impl<M> Send for RawRwLock<M> {}
    // SAFETY: as above.
    unsafe impl<M> Sync for RawRwLock<M> {}

    #[inline(always)]
    fn begun<M: Mark>(line: &Line) {
        wait::took(line);
        mark::enter::<M>(line);
    }

    fn end(timeout: Duration) -> u64 {
        sys::now().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
    }

    // SAFETY: a writer enters when the count was 0, and makes it all ones; a reader when there is
    // no writer.
    unsafe impl<M: Mark> lock_api::RawRwLock for RawRwLock<M> {
        #[allow(clippy::declare_interior_mutable_const, reason = "lock_api asks for it")]
        const INIT: RawRwLock<M> = RawRwLock(Core::new(), PhantomData);
        /// The thread's line says that it holds the lock.
        type GuardMarker = lock_api::GuardNoSend;

        #[inline]
        fn lock_shared(&self) {
            let line = thread::me();
            self.0.read(line.index() | HELD, Prefer::Writers);
            begun::<M>(line);
        }

        #[inline]
        fn try_lock_shared(&self) -> bool {
            let line = thread::me();
            let taken = self.0.try_read(line.index() | HELD, Prefer::Writers);
            if taken {
                begun::<M>(line);
            }
            taken
        }

        #[inline]
        unsafe fn unlock_shared(&self) {
            // SAFETY: the caller holds it for reading.
            unsafe { self.0.read_unlock() };
            mark::leave::<M>();
        }

        #[inline]
        fn lock_exclusive(&self) {
            let line = thread::me();
            self.0.write(line.index() | HELD);
            begun::<M>(line);
        }

        #[inline]
        fn try_lock_exclusive(&self) -> bool {
            let line = thread::me();
            let taken = self.0.try_write(line.index() | HELD);
            if taken {
                begun::<M>(line);
            }
            taken
        }

        #[inline]
        unsafe fn unlock_exclusive(&self) {
            // SAFETY: the caller holds it for writing.
            unsafe { self.0.write_unlock(Prefer::Writers) };
            mark::leave::<M>();
        }

        fn is_locked(&self) -> bool {
            self.0.is_locked()
        }

        fn is_locked_exclusive(&self) -> bool {
            self.0.is_locked_exclusive()
        }
    }

    // SAFETY: as above.
    unsafe impl<M: Mark> lock_api::RawRwLockTimed for RawRwLock<M> {
        type Duration = Duration;
        type Instant = Instant;

        fn try_lock_shared_for(&self, timeout: Duration) -> bool {
            let line = thread::me();
            let taken = self.0.read_until(line.index() | HELD, Prefer::Writers, end(timeout));
            if taken {
                begun::<M>(line);
            }
            taken
        }

        fn try_lock_shared_until(&self, timeout: Instant) -> bool {
            self.try_lock_shared_for(timeout.saturating_duration_since(Instant::now()))
        }

        fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
            let line = thread::me();
            let taken = self.0.write_until(line.index() | HELD, end(timeout));
            if taken {
                begun::<M>(line);
            }
            taken
        }

        fn try_lock_exclusive_until(&self, timeout: Instant) -> bool {
            self.try_lock_exclusive_for(timeout.saturating_duration_since(Instant::now()))
        }
    }
}
