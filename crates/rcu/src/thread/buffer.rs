// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's own buffer of callbacks: registering is a few plain stores.
//!
//! A locked instruction waits until the stores before it are done, and a thread that unlinks nodes
//! has just written new ones. So a thread updates the pending count and the list of its CPU once
//! for many callbacks: it *opens* its buffer by adding a number of callbacks to the pending
//! count in advance, links callbacks into chains of its own, and when the number is used up (or the
//! next callback is too large) it *closes* it: pushes the chains on the lists of the CPU where it
//! was opened, and returns what it has not used.
//!
//! The buffer also keeps callbacks that only free memory and whose grace period is over, taken from
//! the list when there was too much garbage (`limits.rs`): the thread runs one at each
//! registration, so that its allocator finds again what it just gave back.
//!
//! # Who may touch it
//! A thread may stop registering while callbacks are in its buffer. A sweeper (a worker, or a
//! caller of `barrier`) must be able to take them, at no cost to the owner:
//!
//! > **Invariant.** The contents are touched by the owner while `busy` is set and it has seen
//! > `revoked` clear since it set it; by a sweeper while `revoked` is set and it has seen `busy`
//! > clear since a heavy barrier that came after it set it. Never both.
//!
//! Owner: set `busy`; **light**; load `revoked`. Sweeper: set `revoked`; **heavy**; load `busy`. As
//! with the reader's word (`record.rs`), either the sweeper sees `busy`, and leaves the buffer
//! alone until another time, or the owner sees `revoked`, and registers without its buffer. Neither
//! waits for the other. One sweeper at a time per domain, under a lock that owners do not take.
//!
//! The buffer lies in the thread's record and stays there when the record changes hands. Its
//! pointers mean something in this process only.
//!
//! # An owner that never comes out
//! A thread may end inside, or while it registers without its buffer: killed by a bare `exit`
//! system call in a signal handler, or cancelled asynchronously. When its record is released,
//! `busy` becomes [`ABANDONED`]: new owners stay out, and the next sweeper takes what is there. The
//! owner may have been between any two instructions, so:
//!
//! > **Invariant.** At any moment each chain's `first` is null or leads to callbacks that are
//! > registered, not run, nobody else's, and linked to a null. What the owner has in hand is in no
//! > chain.
//!
//! Callbacks that the owner had in hand are lost, and its last change of the pending count is not
//! known: [`recount`](crate::callback::recount) puts the pending count right.

use super::list::Chain;
use super::load::Load;
use crate::platform::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell, fence};
use crate::thread::head::{Head, LEAF, PHASE, run};
use std::sync::atomic::compiler_fence;

/// Values of `busy`: the owner is not inside; it is; it ended while it was.
const OUTSIDE: u32 = 0;
const INSIDE: u32 = 1;
const ABANDONED: u32 = 2;

/// Values of `revoked` beside 0: the owner is kept out; a fork that is prepared has seen, since
/// then, that it is.
const REVOKED: u32 = 1;
#[cfg(not(loom))]
const HELD: u32 = 2;

/// Zeroes are an empty buffer.
#[repr(C, align(128))]
pub(crate) struct Buffer {
    busy: AtomicU32,
    revoked: AtomicU32,
    /// 0 when there is nothing in it; else a number that changes whenever the owner opens it.
    pending: AtomicU32,
    /// `pending` as the worker last saw it.
    seen: AtomicU32,
    /// The CPU where it was opened.
    home: AtomicU32,
    /// By phase: odd while the owner registers a callback without the buffer, between the pending
    /// count and the list; grows by one each time it begins or ends.
    unbuffered: [AtomicU32; 2],
    /// In the pending count, and not registered (yet).
    unused: AtomicU64,
    /// In the pending count, by phase, and run or being run.
    unsettled: [AtomicU64; 2],
    contents: UnsafeCell<Contents>,
}

struct Contents {
    /// Not mere frees, mere frees.
    chains: [Chain; 2],
    /// May be run.
    ready: Chain,
    phase: u32,
    opened: u32,
    since: Load,
}

/// The right to touch the contents.
pub(crate) struct Access<'a> {
    buffer: &'a Buffer,
    owner: bool,
}

/// The contents of a buffer.
pub(crate) struct Closed {
    pub(crate) home: usize,
    pub(crate) chains: [Chain; 2],
    pub(crate) phase: usize,
    pub(crate) unused: Load,
    pub(crate) unsettled: [Load; 2],
}

impl Buffer {
    #[cfg(loom)]
    pub(crate) fn new() -> Buffer {
        let contents = Contents {
            chains: [Chain::EMPTY; 2],
            ready: Chain::EMPTY,
            phase: 0,
            opened: 0,
            since: Load::NONE,
        };
        Buffer {
            busy: AtomicU32::new(0),
            revoked: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            home: AtomicU32::new(0),
            unbuffered: [AtomicU32::new(0), AtomicU32::new(0)],
            unused: AtomicU64::new(0),
            unsettled: [AtomicU64::new(0), AtomicU64::new(0)],
            contents: UnsafeCell::new(contents),
        }
    }

    /// The owner, which executes a fence where there is no membarrier. `None`: it is being swept,
    /// or in use further up the stack.
    #[inline(always)]
    pub(crate) fn enter(&self, fenced: bool) -> Option<Access<'_>> {
        if self.busy.load(Ordering::Relaxed) != OUTSIDE {
            return None;
        }
        self.busy.store(INSIDE, Ordering::Relaxed);
        if fenced {
            fence(Ordering::SeqCst);
        } else {
            crate::platform::barrier::light();
        }
        let access = Access { buffer: self, owner: true };
        // Acquire: pairs with the end of a sweep.
        if self.revoked.load(Ordering::Acquire) == 0 { Some(access) } else { None }
    }

    /// A sweeper, first: keeps the owner out from its next registration on.
    pub(crate) fn revoke(&self) {
        self.revoked.store(REVOKED, Ordering::Relaxed);
    }

    /// A fork that is prepared, after a revocation and a heavy barrier: notes it if the owner is
    /// outside. It stays there until the revocation ends, though it may knock: `busy` shows that.
    #[cfg(not(loom))]
    pub(crate) fn hold(&self) {
        if !self.occupied() {
            self.revoked.store(HELD, Ordering::Relaxed);
        }
    }

    /// A sweeper, after a heavy barrier. `None`: the owner is inside, and may go on.
    pub(crate) fn seize(&self) -> Option<Access<'_>> {
        let access = Access { buffer: self, owner: false };
        // Acquire: pairs with the owner's leaving, or its record's release.
        if self.busy.load(Ordering::Acquire) != INSIDE { Some(access) } else { None }
    }

    /// Whether there is something in it. A sweeper that looks after a fence sees what the owner had
    /// opened before one.
    pub(crate) fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) != 0 || self.abandoned()
    }

    pub(crate) fn abandoned(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == ABANDONED
    }

    /// The owner has gone, or is this thread with nothing of its registrations left on its stack.
    /// Before the record is anybody else's.
    pub(crate) fn abandon(&self) {
        let mut inside = self.busy.load(Ordering::Relaxed) == INSIDE;
        for count in &self.unbuffered {
            let times = count.load(Ordering::Relaxed);
            if times % 2 != 0 {
                count.store(times.wrapping_add(1), Ordering::Release);
                inside = true;
            }
        }
        // Nobody else writes the word while it is not `ABANDONED`.
        if inside {
            self.busy.store(ABANDONED, Ordering::Release);
        }
    }

    /// The owner: does `f`, which registers a callback without the buffer.
    pub(crate) fn register_unbuffered<R>(&self, phase: usize, f: impl FnOnce() -> R) -> R {
        let times = self.unbuffered[phase].load(Ordering::Relaxed);
        self.unbuffered[phase].store(times.wrapping_add(1), Ordering::Relaxed);
        // Whoever sees what `f` does to the pending count, or the list, sees that it has begun.
        fence(Ordering::Release);
        let result = f();
        // Release: whoever sees that it has ended sees all of it.
        self.unbuffered[phase].store(times.wrapping_add(2), Ordering::Release);
        result
    }

    /// Changes whenever the owner begins or ends to register without the buffer. `None` while it
    /// does.
    #[cfg(not(loom))]
    pub(crate) fn unbuffered_registrations(&self, phase: usize) -> Option<u32> {
        let times = self.unbuffered[phase].load(Ordering::Acquire);
        (times % 2 == 0).then_some(times)
    }

    pub(crate) fn home(&self) -> usize {
        self.home.load(Ordering::Relaxed) as usize
    }

    /// Whether the owner has left it as it was at the last call. Under the sweepers' lock.
    #[cfg(not(loom))]
    pub(crate) fn rests(&self) -> bool {
        let pending = self.pending.load(Ordering::Relaxed);
        let rests = self.seen.load(Ordering::Relaxed) == pending;
        self.seen.store(pending, Ordering::Relaxed);
        rests
    }

    /// The part of the pending count for callbacks that do not wait, because they were not
    /// registered (yet) or because they have run.
    #[cfg(not(loom))]
    pub(crate) fn idle_load(&self) -> (Load, Load) {
        let load = |word: &AtomicU64| Load::from_bits(word.load(Ordering::Relaxed));
        let ran = load(&self.unsettled[0]).add(load(&self.unsettled[1]));
        (load(&self.unused), ran)
    }

    /// Whether the owner is inside.
    #[cfg(not(loom))]
    pub(crate) fn occupied(&self) -> bool {
        self.busy.load(Ordering::Acquire) == INSIDE
    }

    /// Whether the owner is in the middle of a registration.
    #[cfg(not(loom))]
    pub(crate) fn registering(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == INSIDE
            || (0..2).any(|phase| self.unbuffered_registrations(phase).is_none())
    }

    /// Ends a revocation.
    #[cfg(not(loom))]
    pub(crate) fn restore(&self) {
        self.revoked.store(0, Ordering::Release);
    }

    /// In the child of a fork, where there is no owner inside. `None`: the contents may have been
    /// in the middle of a change, and are abandoned.
    #[cfg(not(loom))]
    pub(crate) fn after_fork(&self) -> Option<Closed> {
        let held = self.revoked.swap(0, Ordering::Relaxed) == HELD;
        let outside = self.busy.swap(OUTSIDE, Ordering::Relaxed) == OUTSIDE;
        let mut access = Access { buffer: self, owner: false };
        // First: a buffer that still has something is closed without forgetting its lane.
        let mut ready = access.take_ready();
        let mut closed = access.close();
        if !(held || outside) {
            return None;
        }
        // SAFETY: nobody else is there; by the invariant a chain's first head leads to all of it.
        unsafe {
            if !outside {
                // An earlier owner may have ended inside: see above.
                closed.chains = closed.chains.map(|chain| Chain::of(chain.first));
            }
            while let Some(head) = ready.pop().as_mut() {
                closed.chains[1].push(head);
            }
        }
        Some(closed)
    }

    /// For a test: the owner knocks, and has not turned back yet.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn knock(&self) {
        self.busy.store(INSIDE, Ordering::Relaxed);
    }
}

impl Access<'_> {
    #[inline(always)]
    fn contents<R>(&mut self, f: impl FnOnce(&mut Contents) -> R) -> R {
        // SAFETY: by the invariant nobody else touches them.
        self.buffer.contents.with_mut(|contents| f(unsafe { &mut *contents }))
    }

    /// Links a callback into its chain, if the buffer is open for one of that size.
    ///
    /// # Safety
    /// The head is the caller's alone, and stays valid until it is run.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, head: *mut Head) -> bool {
        let unused = Load::from_bits(self.buffer.unused.load(Ordering::Relaxed));
        // SAFETY: the caller's promise.
        let units = unsafe { (*head).units };
        if unused.callbacks() == 0 || unused.units() < units as u64 {
            return false;
        }
        self.buffer.unused.store(unused.less(Load::one(units)).bits(), Ordering::Relaxed);
        self.contents(|contents| {
            // SAFETY: the caller's promise.
            unsafe {
                let flags = (*head).flags & !PHASE | contents.phase;
                (*head).flags = flags;
                contents.chains[(flags & LEAF != 0) as usize].push(head);
            }
        });
        true
    }

    /// Opens the buffer, which is closed, for what was added to the pending count of `home`, under
    /// `phase`.
    pub(crate) fn open(&mut self, home: usize, phase: usize, reserved: Load) {
        debug_assert_eq!(self.buffer.unused.load(Ordering::Relaxed), 0, "it is open");
        self.buffer.unused.store(reserved.bits(), Ordering::Relaxed);
        self.buffer.home.store(home as u32, Ordering::Relaxed);
        let opened = self.contents(|contents| {
            contents.phase = phase as u32;
            contents.since = contents.since.add(reserved);
            // Never 0.
            contents.opened = contents.opened.wrapping_add(1) | 1 << 31;
            contents.opened
        });
        self.buffer.pending.store(opened, Ordering::Relaxed);
    }

    /// A sweeper: whether there is no owner that could come out. Then the numbers of what is closed
    /// may be wrong, and so may the chains' ends.
    pub(crate) fn abandoned(&self) -> bool {
        self.buffer.abandoned()
    }

    /// A sweeper, which has taken everything out of an abandoned buffer: it may be used again.
    pub(crate) fn reopen(&mut self) {
        // Before the revocation ends: an owner that comes in between sees that, one that comes
        // later what was done under it.
        self.buffer.busy.store(OUTSIDE, Ordering::Release);
    }

    /// Takes everything out but what may be run.
    pub(crate) fn close(&mut self) -> Closed {
        let take = |word: &AtomicU64| {
            let load = Load::from_bits(word.load(Ordering::Relaxed));
            word.store(0, Ordering::Relaxed);
            load
        };
        let unused = take(&self.buffer.unused);
        let unsettled = [take(&self.buffer.unsettled[0]), take(&self.buffer.unsettled[1])];
        let (chains, phase, empty) = self.contents(|contents| {
            let chains = std::mem::replace(&mut contents.chains, [Chain::EMPTY; 2]);
            // In hand before their ends are linked to something else.
            compiler_fence(Ordering::Release);
            (chains, contents.phase as usize, contents.ready.is_empty())
        });
        let home = self.buffer.home();
        if empty {
            self.buffer.pending.store(0, Ordering::Relaxed);
            // The next domain of this index may have fewer lanes.
            self.buffer.home.store(0, Ordering::Relaxed);
        }
        Closed { home, chains, phase, unused, unsettled }
    }

    /// Registered by this thread since the last call of `begin_help`, at most.
    #[cfg(not(loom))]
    pub(crate) fn since_help(&mut self) -> Load {
        self.contents(|contents| contents.since)
    }

    #[cfg(not(loom))]
    pub(crate) fn count(&mut self, load: Load) {
        self.contents(|contents| contents.since = contents.since.add(load));
    }

    #[cfg(not(loom))]
    pub(crate) fn begin_help(&mut self) {
        self.contents(|contents| contents.since = Load::NONE);
    }

    /// Keeps callbacks that may be run. There were none.
    pub(crate) fn set_ready(&mut self, home: usize, chain: Chain) {
        let opened = self.contents(|contents| {
            debug_assert!(contents.ready.is_empty());
            compiler_fence(Ordering::Release);
            contents.ready = chain;
            contents.opened = contents.opened.wrapping_add(1) | 1 << 31;
            contents.opened
        });
        self.buffer.home.store(home as u32, Ordering::Relaxed);
        self.buffer.pending.store(opened, Ordering::Relaxed);
    }

    pub(crate) fn home(&self) -> usize {
        self.buffer.home()
    }

    /// The address that tells the buffer from others.
    #[cfg(not(loom))]
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self.buffer) as usize
    }

    #[inline(always)]
    pub(crate) fn has_ready(&mut self) -> bool {
        self.contents(|contents| !contents.ready.is_empty())
    }

    pub(crate) fn take_ready(&mut self) -> Chain {
        self.contents(|contents| std::mem::replace(&mut contents.ready, Chain::EMPTY))
    }

    /// Runs one of those that may be run. False if there is none.
    pub(crate) fn run_one(&mut self) -> bool {
        // SAFETY: the contents are ours.
        let head = self.contents(|contents| unsafe { contents.ready.pop() });
        // SAFETY: a head in the buffer is valid, and nobody else's. It is gone when its function
        // has been called.
        unsafe {
            let Some(callback) = head.as_ref() else { return false };
            let ran = &self.buffer.unsettled[(callback.flags & PHASE) as usize];
            let sum = Load::from_bits(ran.load(Ordering::Relaxed)).add(Load::one(callback.units));
            ran.store(sum.bits(), Ordering::Relaxed);
            run(head);
        }
        true
    }
}

impl Drop for Access<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let word = if self.owner { &self.buffer.busy } else { &self.buffer.revoked };
        word.store(OUTSIDE, Ordering::Release);
    }
}
