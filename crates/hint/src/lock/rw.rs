// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader-writer lock and semaphore: many readers or one writer. Writers go first, or in the
//! C library's place ([`Prefer::Readers`]) readers.
//!
//! # State
//! As in Rust's standard library (`std::sync::RwLock` on futexes), the low 30 bits of `state` count
//! readers, or are all ones for a writer; two bits say that readers or writers sleep. Readers sleep
//! on `state`, writers on `writers`, a count of wake-ups. What is added is `owner`, the writer or
//! the reader that came last, and waiting by what that thread does. In the C library's place, a
//! writer also finds there that it holds the lock itself ([`Core::is_written_by`]).
//!
//! # The memory may vanish
//! > **Invariant.** A thread that releases the lock does not touch its memory afterwards.
//!
//! For the C library's rules let a thread that has taken the lock after it, and is the last to use
//! it, free the memory at once. So the exchange that frees the lock clears both bits as well: a
//! free lock is 0, also in the child of a fork. Then sleepers are woken by their address alone; a
//! wake-up that comes late meets nobody, or is one without a reason.
//!
//! # Nobody sleeps for ever
//! > **Invariant.** If a thread sleeps, its bit is set, or the release that cleared the bit has not
//! > woken anybody yet, or a thread is awake that was woken and *carries* the bit: it sets it as it
//! > takes the lock, before it sleeps, and before it gives up, or wakes others as a release does.
//!
//! A thread sets its bit by compare-and-swap while the lock is held. A release wakes
//! - one writer, or all readers if no writer sleeps. That writer carries both bits: other writers
//!   may sleep, and readers;
//! - with [`Prefer::Readers`], all readers, or one writer if no reader sleeps. Those readers carry
//!   the writers' bit, and so does that writer.
//!
//! Readers compare `state` as they fall asleep. Writers compare `writers`, which has to change
//! before the lock is free. So a release first clears the writers' bit, then adds to `writers`, and
//! then frees the lock, if nothing has changed meanwhile. A writer that reads the new count finds
//! the bit cleared, and does not sleep; if one sets it again, the release begins anew. If another
//! reader has come meanwhile, the lock is not free, and the release wakes a writer all the same: it
//! carries the bit.
//!
//! # Readers first
//! > **Invariant.** With [`Prefer::Readers`], no reader sleeps while others read, but one that is
//! > about to be woken.
//!
//! For a reader that has the lock may wait for one that has not. Readers set their bit only while a
//! writer holds the lock, nobody carries it, and that writer's release wakes all of them.
//!
//! # Writers first
//! > **Invariant.** With [`Prefer::Writers`], no bit is set while readers hold the lock unless a
//! > writer waits.
//!
//! For the bits keep further readers out, and whoever has the lock may wait for one of them. So a
//! writer that gives up while readers hold the lock does what a release does, but for freeing the
//! lock: it clears both bits, adds to `writers`, and wakes one writer, who sets them again, or all
//! readers if no writer sleeps. And no release sets a bit: the writer may have given up meanwhile.
//!
//! A release does not hand the lock over. With [`Prefer::Writers`], a reader that releases it and
//! soon comes again would be quicker each time than the writer that its release wakes. So a writer
//! that has slept for [`FAIR`] asks readers (`asked`), and a reader that comes within that time
//! after a release that woke a writer waits until a writer has the lock, or that time is over. This
//! is about who is quicker, and no invariant rests on it.

use super::stamped::Stamped;
use crate::platform::end::End;
use crate::platform::sync::{AtomicU32, Futex, Ordering, broken, const_unless_loom};
use crate::wait::{self, Advice, FAIR, HELD, Waiter, is_over, left};
use std::time::Duration;

const READER: u32 = 1;
const COUNT: u32 = (1 << 30) - 1;
const WRITER: u32 = COUNT;
/// A count one less than a writer's is never reached: there are not that many threads.
const MOST_READERS: u32 = COUNT - 1;
const READERS_SLEEP: u32 = 1 << 30;
const WRITERS_SLEEP: u32 = 1 << 31;

/// In `owner`: the thread that is named there holds the lock for writing, unless it has released it
/// by [`Core::write_unlock`].
const WRITES: u32 = 1 << 30;

fn free(state: u32) -> bool {
    state & COUNT == 0
}

/// The word of a writer that asks at that time.
fn asking(now: u64) -> u32 {
    (now / 1000) as u32 | 1
}

/// The preferred side when readers hold the lock and writers wait, and when a writer releases it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    Writers,
    /// A reader may enter again while it reads, whoever waits.
    Readers,
}

impl Prefer {
    fn readable(self, state: u32) -> bool {
        let bits = if self == Prefer::Writers { READERS_SLEEP | WRITERS_SLEEP } else { 0 };
        state & COUNT < MOST_READERS && state & bits == 0
    }

    /// The bits of those that may sleep still when a reader was woken.
    fn reader_carries(self) -> u32 {
        match self {
            // The reader was woken because no writer slept.
            Prefer::Writers => 0,
            Prefer::Readers => broken!(WritersForgotten, 0, WRITERS_SLEEP),
        }
    }

    /// The same for a writer.
    fn writer_carries(self) -> u32 {
        let bits = match self {
            Prefer::Writers => broken!(ReadersForgotten, 0, READERS_SLEEP) | WRITERS_SLEEP,
            // All readers were woken before, or with it.
            Prefer::Readers => WRITERS_SLEEP,
        };
        broken!(WriterForgetsOthers, bits & !WRITERS_SLEEP, bits)
    }
}

#[repr(C)]
pub(crate) struct Core {
    state: Futex,
    writers: Futex,
    owner: AtomicU32,
    /// Whether a writer asks readers to let it go first: a time in us, or 0.
    asked: Futex,
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
                asked: Futex::new(0),
                spinners: Stamped::new()
            }
        }
    }

    /// As a fork may leave it to the child.
    #[cfg(all(loom, test))]
    pub(crate) fn left() -> Core {
        Core { spinners: Stamped::left(1), ..Core::new() }
    }

    /// Whether the memory is as its next owner has left it.
    #[cfg(all(loom, test))]
    pub(crate) fn is_reused(&self, state: u32) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }

    /// The memory, with what its next owner writes there.
    #[cfg(all(loom, test))]
    pub(crate) fn reuse(&self, state: u32) {
        self.state.store(state, Ordering::Relaxed);
    }

    pub(crate) fn is_locked(&self) -> bool {
        !free(self.state.load(Ordering::Relaxed))
    }

    pub(crate) fn is_locked_exclusive(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COUNT == WRITER
    }

    /// Whether the calling thread, which is `me`, holds the lock for writing. Locks that are asked
    /// this are released by [`Core::unlock`]. Threads without a line share a name: of them it is
    /// not known.
    pub(crate) fn is_written_by(&self, me: u32) -> bool {
        me != HELD && self.owner.load(Ordering::Relaxed) == me | WRITES
    }

    #[inline]
    pub(crate) fn try_read(&self, me: u32, prefer: Prefer) -> bool {
        self.try_read_with(me, prefer, 0)
    }

    /// Takes the lock if it is readable; sets the bits.
    #[inline]
    fn try_read_with(&self, me: u32, prefer: Prefer, bits: u32) -> bool {
        let enter = |state| prefer.readable(state).then(|| (state + READER) | bits);
        let taken = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok();
        if taken {
            self.owner.store(me, Ordering::Relaxed);
        }
        taken
    }

    /// Waits at most until `end`, if there is one. Whether the lock was taken.
    #[inline]
    pub(crate) fn read(&self, me: u32, prefer: Prefer, end: Option<End>) -> bool {
        self.let_writers_go(prefer, end);
        self.try_read(me, prefer) || self.read_slow(me, prefer, end)
    }

    #[inline]
    fn let_writers_go(&self, prefer: Prefer, end: Option<End>) {
        if prefer == Prefer::Writers && !cfg!(loom) && self.asked.load(Ordering::Relaxed) != 0 {
            self.wait_for_writer(end);
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_writer(&self, end: Option<End>) {
        loop {
            let (asked, now) = (self.asked.load(Ordering::Relaxed), wait::now());
            // Written a moment later, or of another hour: the count goes round.
            let gone = i64::from(asking(now).wrapping_sub(asked) as i32) * 1000;
            let Some(left) = left(end).filter(|_| asked != 0) else { return };
            if gone.unsigned_abs() >= FAIR {
                // The writer may sleep still. If none does, the word is of a writer that gave up,
                // or of the parent of this process.
                if self.state.load(Ordering::Relaxed) & WRITERS_SLEEP == 0 {
                    let order = (Ordering::Relaxed, Ordering::Relaxed);
                    let _ = self.asked.compare_exchange(asked, 0, order.0, order.1);
                }
                return;
            }
            let most = Duration::from_nanos(FAIR.min(FAIR.saturating_add_signed(-gone)));
            self.asked.wait(asked, Some(left.map_or(most, |left| left.min(most))));
        }
    }

    #[cold]
    #[inline(never)]
    fn read_slow(&self, me: u32, prefer: Prefer, end: Option<End>) -> bool {
        let mut carried = 0;
        loop {
            let done =
                |state| prefer.readable(state) || state & (READERS_SLEEP | WRITERS_SLEEP) != 0;
            let state = self.spin(end, done);
            if self.try_read_with(me, prefer, carried) {
                return true;
            }
            if is_over(end) {
                // This reader may have been woken in the place of a writer.
                if carried == 0 || self.give_up(carried, prefer) {
                    return false;
                }
                continue;
            }
            if prefer.readable(state) {
                continue;
            }
            let with_bits = state | READERS_SLEEP | carried;
            if state != with_bits && !self.change(state, with_bits) {
                continue;
            }
            self.state.wait_until(with_bits, end);
            carried = prefer.reader_carries();
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn try_write(&self, me: u32) -> bool {
        self.try_write_with(me, 0)
    }

    /// Takes the lock if it is free; sets the bits.
    #[inline]
    fn try_write_with(&self, me: u32, bits: u32) -> bool {
        let (to, change) = (WRITER | bits, (Ordering::Acquire, Ordering::Relaxed));
        let taken = self.state.compare_exchange(0, to, change.0, change.1).is_ok();
        if taken {
            self.owner.store(me | WRITES, Ordering::Relaxed);
        }
        taken
    }

    /// Waits at most until `end`, if there is one. Whether the lock was taken.
    #[inline]
    pub(crate) fn write(&self, me: u32, prefer: Prefer, end: Option<End>) -> bool {
        // Without a look at the state first, which would wait for the last release.
        self.try_write(me) || self.write_slow(me, prefer, end)
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&self, me: u32, prefer: Prefer, end: Option<End>) -> bool {
        let mut carried = 0;
        let mut slept = None;
        loop {
            let state = self.spin(end, |state| free(state) || state & WRITERS_SLEEP != 0);
            if self.try_write_with(me, carried) {
                self.answer();
                return true;
            }
            if is_over(end) {
                // This writer may have been woken in the place of another thread.
                if carried == 0 || self.give_up(carried, prefer) {
                    return false;
                }
                continue;
            }
            let with_bits = state | WRITERS_SLEEP | carried;
            if free(state) || state != with_bits && !self.change(state, with_bits) {
                continue;
            }
            carried = prefer.writer_carries();
            let turn = self.writers.load(Ordering::Acquire);
            let state = self.state.load(Ordering::Relaxed);
            if free(state) || state & WRITERS_SLEEP == 0 {
                continue;
            }
            if prefer != Prefer::Writers || cfg!(loom) {
                self.writers.wait_until(turn, end);
                continue;
            }
            let began = *slept.get_or_insert_with(wait::now);
            self.writers.wait_until(turn, end);
            let now = wait::now();
            // Unless its time is over: then it is on its way out.
            if now - began >= FAIR && !is_over(end) {
                self.asked.store(asking(now), Ordering::Relaxed);
            }
        }
    }

    /// Readers need not wait any longer for this writer to take the lock.
    fn answer(&self) {
        if !cfg!(loom) && self.asked.load(Ordering::Relaxed) != 0 {
            self.asked.store(0, Ordering::Relaxed);
            self.asked.wake(i32::MAX);
        }
    }

    /// A thread that may have been woken gives up, unless the lock is free.
    fn give_up(&self, carried: u32, prefer: Prefer) -> bool {
        // A writer keeps readers out anyway, and its release clears the bits.
        let leaves = |state: u32| {
            let right = prefer != Prefer::Writers || state & COUNT == WRITER;
            broken!(GivesUpWithBits, true, right)
        };
        let change = |state: u32| {
            let to = if leaves(state) { state | carried } else { state & COUNT };
            (!free(state)).then_some(to)
        };
        match self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change) {
            Ok(state) if !leaves(state) => {
                self.writers.fetch_add(1, Ordering::Release);
                let _ = broken!(GivesUpAlone, true, false)
                    || self.writers.wake(1)
                    || self.state.wake(i32::MAX);
                true
            }
            found => found.is_ok(),
        }
    }

    /// Releases the lock, held for reading or for writing. The memory may be another's when this
    /// returns.
    ///
    /// # Safety
    /// The caller holds the lock, which is valid until it is released.
    #[inline]
    pub(crate) unsafe fn unlock(lock: *const Core, prefer: Prefer) {
        // SAFETY: the caller's promise; it holds the lock still.
        let state = unsafe { (*lock).state.load(Ordering::Relaxed) };
        if state & COUNT == WRITER {
            // Before another thread has the lock: that one names itself after it has taken it.
            // SAFETY: as above.
            unsafe { (*lock).owner.store(0, Ordering::Relaxed) };
        }
        // SAFETY: as above.
        unsafe { Core::release(lock, state, prefer) };
    }

    /// The same for a writer, without a look at the state first.
    ///
    /// # Safety
    /// As above; for writing.
    #[inline]
    pub(crate) unsafe fn write_unlock(lock: *const Core, prefer: Prefer) {
        // SAFETY: as above.
        unsafe { Core::release(lock, WRITER, prefer) };
    }

    /// `state` is the lock's, as far as the caller knows.
    ///
    /// # Safety
    /// As above.
    #[inline]
    unsafe fn release(lock: *const Core, state: u32, prefer: Prefer) {
        let last = state & COUNT == WRITER || state & COUNT == READER;
        if state & (READERS_SLEEP | WRITERS_SLEEP) == 0 {
            let to = if last { 0 } else { state - READER };
            let change = (Ordering::Release, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            if unsafe { (*lock).state.compare_exchange(state, to, change.0, change.1).is_ok() } {
                return;
            }
        }
        // SAFETY: it is not released.
        unsafe { Core::release_slow(lock, prefer) };
    }

    /// # Safety
    /// As above.
    #[cold]
    #[inline(never)]
    unsafe fn release_slow(lock: *const Core, prefer: Prefer) {
        // SAFETY: the caller's promise, until the exchange that ends the loop; afterwards, only the
        // addresses count.
        unsafe {
            let (readers, writers) = (&raw const (*lock).state, &raw const (*lock).writers);
            let mut state = (*readers).load(Ordering::Relaxed);
            // Whether this has cleared the writers' bit.
            let mut cleared = false;
            loop {
                let last = state & COUNT == WRITER || state & COUNT == READER;
                let clear = state & WRITERS_SLEEP != 0 && broken!(BitKept, !cleared, true);
                if last && clear {
                    let without = broken!(BitKept, state, state & !WRITERS_SLEEP);
                    // Before a reader can find no bit.
                    (*lock).ask_again();
                    if (*lock).change(state, without) {
                        (*writers).fetch_add(1, Ordering::Release);
                        cleared = true;
                    }
                    state = (*readers).load(Ordering::Relaxed);
                    continue;
                }
                let to = if last {
                    broken!(FreedWithBit, state & READERS_SLEEP, 0)
                } else {
                    state - READER
                };
                let change = (Ordering::Release, Ordering::Relaxed);
                match (*readers).compare_exchange(state, to, change.0, change.1) {
                    Ok(_) if !last => {
                        // Another reader has come since: it does not know of the bit.
                        if cleared {
                            Futex::wake_at(writers, 1);
                        }
                        return;
                    }
                    Ok(_) => break,
                    Err(now) => state = now,
                }
            }
            if broken!(FreedWithBit, true, false) {
                (*lock).change(READERS_SLEEP, 0);
            }
            let wake_readers = || state & READERS_SLEEP != 0 && Futex::wake_at(readers, i32::MAX);
            let wake_writer = || cleared && Futex::wake_at(writers, 1);
            match prefer {
                Prefer::Writers => wake_writer() || wake_readers(),
                Prefer::Readers => wake_readers() || wake_writer(),
            };
        }
    }

    /// A writer that asked is about to be woken.
    fn ask_again(&self) {
        if !cfg!(loom) && self.asked.load(Ordering::Relaxed) != 0 {
            self.asked.store(asking(wait::now()), Ordering::Relaxed);
        }
    }

    /// Waits until `done`, or until it is better to sleep, or the time is over. The state then.
    fn spin(&self, end: Option<End>, done: impl Fn(u32) -> bool) -> u32 {
        if let Some(state) = self.spin_quick(&done) {
            return state;
        }
        let admitted = self.spinners.add().0 < wait::spinners();
        let state =
            if admitted { self.spin_on(end, done) } else { self.state.load(Ordering::Relaxed) };
        self.spinners.sub();
        state
    }

    /// The state, if it was `done` after a moment. Only where nobody sleeps.
    fn spin_quick(&self, done: &impl Fn(u32) -> bool) -> Option<u32> {
        let mut state = self.state.load(Ordering::Relaxed);
        if state & (READERS_SLEEP | WRITERS_SLEEP) != 0 {
            return None;
        }
        let taken = wait::quick(|| {
            state = self.state.load(Ordering::Relaxed);
            done(state)
        });
        taken.then_some(state)
    }

    fn spin_on(&self, end: Option<End>, done: impl Fn(u32) -> bool) -> u32 {
        let mut waiter = Waiter::new();
        loop {
            let state = self.state.load(Ordering::Relaxed);
            let holder = if state & COUNT == WRITER || state & COUNT == 1 {
                self.owner.load(Ordering::Relaxed) & !WRITES
            } else {
                0
            };
            if done(state) || waiter.look(|| holder) == Advice::Sleep || is_over(end) {
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
    use crate::platform::end::End;
    use crate::thread;
    use crate::wait::HELD;
    use std::marker::PhantomData;
    use std::time::{Duration, Instant};

    /// The reader-writer lock and semaphore, for `lock_api`.
    #[repr(transparent)]
    pub struct RawRwLock<M>(pub(crate) Core, PhantomData<M>);

    // SAFETY: as `M` is never made.
    unsafe impl<M> Send for RawRwLock<M> {}
    // SAFETY: as above.
    unsafe impl<M> Sync for RawRwLock<M> {}

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
            mark::begun::<M>(line, self.0.read(line.index() | HELD, Prefer::Writers, None));
        }

        #[inline]
        fn try_lock_shared(&self) -> bool {
            let line = thread::me();
            mark::begun::<M>(line, self.0.try_read(line.index() | HELD, Prefer::Writers))
        }

        #[inline]
        unsafe fn unlock_shared(&self) {
            // SAFETY: the caller holds it for reading.
            unsafe { Core::unlock(&self.0, Prefer::Writers) };
            mark::leave::<M>();
        }

        #[inline]
        fn lock_exclusive(&self) {
            let line = thread::me();
            mark::begun::<M>(line, self.0.write(line.index() | HELD, Prefer::Writers, None));
        }

        #[inline]
        fn try_lock_exclusive(&self) -> bool {
            let line = thread::me();
            mark::begun::<M>(line, self.0.try_write(line.index() | HELD))
        }

        #[inline]
        unsafe fn unlock_exclusive(&self) {
            // SAFETY: the caller holds it for writing.
            unsafe { Core::write_unlock(&self.0, Prefer::Writers) };
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
            let (me, end) = (line.index() | HELD, Some(End::after(timeout)));
            mark::begun::<M>(line, self.0.read(me, Prefer::Writers, end))
        }

        fn try_lock_shared_until(&self, timeout: Instant) -> bool {
            self.try_lock_shared_for(timeout.saturating_duration_since(Instant::now()))
        }

        fn try_lock_exclusive_for(&self, timeout: Duration) -> bool {
            let line = thread::me();
            let (me, end) = (line.index() | HELD, Some(End::after(timeout)));
            mark::begun::<M>(line, self.0.write(me, Prefer::Writers, end))
        }

        fn try_lock_exclusive_until(&self, timeout: Instant) -> bool {
            self.try_lock_exclusive_for(timeout.saturating_duration_since(Instant::now()))
        }
    }
}
