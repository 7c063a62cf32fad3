// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's cache line: the hints that it writes, and what waiters want to know of it.
//!
//! # Layout
//! `include/reprieve/hint_abi.h` has it for C and eBPF. All lines of a process are one table, so a
//! thread is named by its index there, which fits into a lock's word; the thread's own block, in
//! initial-exec thread-local storage, has the address of its line. Marking a section is then two
//! loads, an addition and a store, all of the thread's own.
//!
//! # Who may write
//! > **Invariant.** The counts of a line are written by its thread alone, so plain loads and stores
//! > suffice: a signal handler that marks sections of its own has undone them when it returns.
//!
//! # Registration
//! Happens at a thread's first hint or lock, which may be that of a program's allocator, or of a
//! thread that is allowed few system calls.
//!
//! > **Invariant.** Registration allocates nothing and makes no system call. What it needs to know
//! > is found out at load time (`find_out`), and a child of a fork inherits that.
//!
//! (Where a guest's host offers a region, it may ask whether another thread lives: [`slot`].)
//!
//! A line goes back when its thread ends, by the destructor of a key, and is given out again when
//! no fresh one is left. Threads beyond the table share line 0, which has no thread: they are never
//! hinted at, and nothing is known of them.

#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
pub(crate) mod slice;
#[cfg(not(loom))]
mod slot;
#[cfg(not(loom))]
mod table;

#[cfg(not(loom))]
pub(crate) use block::{after_fork, find_out, me};
#[cfg(not(loom))]
pub(crate) use slot::offer;
#[cfg(not(loom))]
pub use slot::{PROBES, SLOTS, Slot};
#[cfg(not(loom))]
pub(crate) use table::LINES;
#[cfg(not(loom))]
use table::lines_in_use;
#[cfg(not(loom))]
pub(crate) use table::{NOBODY, line};

use crate::platform::sync::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::AtomicPtr;

/// The kinds of critical sections that a scheduler may want to know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Others spin for it: the holder of a spin lock, an RCU reader.
    NonPreemptable,
    /// Others sleep for it: the holder of a blocking lock.
    Preemptable,
}

/// A thread's line; `struct reprieve_hint_line` in C.
#[repr(C, align(64))]
pub(crate) struct Line {
    non_preemptable: AtomicU32,
    preemptable: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// Where the thread was when it last took a lock: another thread that runs there knows that
    /// this one does not run.
    pub(crate) cpu: AtomicU32,
    /// The thread's number in the kernel; 0: no thread.
    pub(crate) thread: AtomicU32,
    _unused: u32,
    /// When the thread last looked at a lock that it waits for: a time not long ago means that it
    /// runs.
    pub(crate) waited: AtomicU64,
    /// The thread's slot in the region of a guest, or null.
    #[cfg(not(loom))]
    pub(crate) slot: AtomicPtr<Slot>,
    /// Where the thread asks the kernel for a longer time slice; 0: nowhere; 1: not known yet
    /// ([`slice`]).
    #[cfg(not(loom))]
    pub(crate) slice: AtomicU64,
    #[cfg(not(loom))]
    _pad: [u32; 4],
}

// As the C header has it; a C compiler is asked by the tests of `reprieve-capi`.
#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(
        size_of::<Line>() == 64
            && offset_of!(Line, generation) == 8
            && offset_of!(Line, cpu) == 12
            && offset_of!(Line, thread) == 16
            && offset_of!(Line, waited) == 24
            && offset_of!(Line, slot) == 32
    );
};

impl Line {
    #[inline(always)]
    fn count(&self, kind: Kind) -> &AtomicU32 {
        match kind {
            Kind::NonPreemptable => &self.non_preemptable,
            Kind::Preemptable => &self.preemptable,
        }
    }

    /// Enters a section. By the line's thread only.
    #[inline(always)]
    pub(crate) fn enter(&self, kind: Kind) {
        let count = self.count(kind);
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(1), Ordering::Relaxed);
        #[cfg(not(loom))]
        if self.is_heard(kind) {
            self.entered(kind == Kind::NonPreemptable && before == 0);
        }
    }

    /// Leaves one. By the line's thread only. Without effect outside of any.
    #[inline(always)]
    pub(crate) fn leave(&self, kind: Kind) {
        let count = self.count(kind);
        let before = count.load(Ordering::Relaxed);
        count.store(before.saturating_sub(1), Ordering::Relaxed);
        #[cfg(not(loom))]
        if self.is_heard(kind) {
            self.left(kind == Kind::NonPreemptable && before == 1);
        }
    }

    /// Whether a guest's host or the kernel wants to know. Elsewhere a test of words in a line that
    /// is in the cache.
    #[cfg(not(loom))]
    #[inline(always)]
    fn is_heard(&self, kind: Kind) -> bool {
        let slot = self.slot.load(Ordering::Relaxed);
        !slot.is_null()
            || kind == Kind::NonPreemptable && self.slice.load(Ordering::Relaxed) != slice::NOWHERE
    }

    #[cfg(not(loom))]
    #[cold]
    fn entered(&self, outermost: bool) {
        self.tell_host();
        if outermost {
            // SAFETY: the calling thread's.
            unsafe { slice::request(self.slice.load(Ordering::Relaxed)) };
        }
    }

    #[cfg(not(loom))]
    #[cold]
    fn left(&self, outermost: bool) {
        self.tell_host();
        if outermost {
            // SAFETY: as above.
            unsafe { slice::release(self.slice.load(Ordering::Relaxed)) };
        }
    }

    /// A thread of a model.
    #[cfg(loom)]
    pub(crate) fn model(thread: u32) -> Line {
        Line {
            non_preemptable: AtomicU32::new(0),
            preemptable: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            cpu: AtomicU32::new(0),
            thread: AtomicU32::new(thread),
            _unused: 0,
            waited: AtomicU64::new(0),
        }
    }

    #[cfg(test)]
    pub(crate) fn nesting(&self, kind: Kind) -> u32 {
        self.count(kind).load(Ordering::Relaxed)
    }
}
