// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks as the C library's memory holds them, for the preload shim: in place of a
//! `pthread_mutex_t`'s or a `pthread_rwlock_t`'s first words, which all zeros leave free.

use super::condition::Condition;
use super::mark::{Sleeps, begun, leave};
use super::rw;
pub use super::rw::Prefer;
use super::word::Word;
pub use crate::platform::end::End;
use crate::platform::sync::Ordering;
use crate::thread;
use crate::wait::HELD;

// All of the mutex but for its `__kind`; before `__shared` and before `__wrefs` of the others.
#[cfg(not(loom))]
const _: () = assert!(
    size_of::<Mutex>() <= 40 && size_of::<ReadWrite>() <= 28 && size_of::<Condition>() <= 28
);

/// A mutex, in 32 bytes of which it leaves eight alone.
#[repr(transparent)]
pub struct Mutex(Word);

impl Mutex {
    #[inline(always)]
    fn begun(&self, line: &thread::Line, taken: bool) -> bool {
        if taken {
            let number = line.thread.load(Ordering::Relaxed);
            self.0.owner.store(number, Ordering::Relaxed);
        }
        begun::<Sleeps>(line, taken)
    }

    /// Waits at most until `end`, if there is one.
    #[inline]
    pub fn lock(&self, end: Option<End>) -> bool {
        let line = thread::me();
        self.begun(line, self.0.lock(line.index() | HELD, end))
    }

    #[inline]
    pub fn try_lock(&self) -> bool {
        let line = thread::me();
        self.begun(line, self.0.try_lock(line.index() | HELD))
    }

    /// Makes the memory the C library's again, unless the mutex is locked.
    pub fn destroy(&self) -> bool {
        let free = !self.0.is_locked();
        if free {
            self.0.clear();
        }
        free
    }

    /// The memory may be another's when this returns.
    ///
    /// # Safety
    /// The caller holds the mutex.
    #[inline]
    pub unsafe fn unlock(lock: *const Mutex) {
        // SAFETY: the caller's promise; the types have the same layout.
        unsafe { Word::unlock(lock.cast()) };
        leave::<Sleeps>();
    }
}

/// A reader-writer lock, in 24 bytes.
#[repr(transparent)]
pub struct ReadWrite(rw::Core);

impl ReadWrite {
    /// Whether the calling thread holds it for writing, and would wait for itself.
    pub fn is_written_by_caller(&self) -> bool {
        self.0.is_written_by(thread::me().index() | HELD)
    }

    /// Waits at most until `end`, if there is one.
    #[inline]
    pub fn read(&self, prefer: Prefer, end: Option<End>) -> bool {
        let line = thread::me();
        begun::<Sleeps>(line, self.0.read(line.index() | HELD, prefer, end))
    }

    #[inline]
    pub fn try_read(&self, prefer: Prefer) -> bool {
        let line = thread::me();
        begun::<Sleeps>(line, self.0.try_read(line.index() | HELD, prefer))
    }

    /// As [`ReadWrite::read`].
    #[inline]
    pub fn write(&self, prefer: Prefer, end: Option<End>) -> bool {
        let line = thread::me();
        begun::<Sleeps>(line, self.0.write(line.index() | HELD, prefer, end))
    }

    #[inline]
    pub fn try_write(&self) -> bool {
        let line = thread::me();
        begun::<Sleeps>(line, self.0.try_write(line.index() | HELD))
    }

    /// Releases what the caller holds, for reading or for writing. The memory may be another's when
    /// this returns.
    ///
    /// # Safety
    /// The caller holds it.
    #[inline]
    pub unsafe fn unlock(lock: *const ReadWrite, prefer: Prefer) {
        // SAFETY: the caller's promise; the types have the same layout.
        unsafe { rw::Core::unlock(lock.cast(), prefer) };
        leave::<Sleeps>();
    }
}
