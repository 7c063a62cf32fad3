// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that arrive in the middle of a section.
//!
//! A handler that used an object whose lock its own thread holds would wait for itself. The preload
//! library therefore stands before the program's handlers: in a section it puts the signal off to
//! the section's end. It also counts handlers, so that a wait knows that one ran between two of its
//! looks.
//!
//! A handler that runs inside all the same (of a fault, or installed past the library) is refused
//! every call, with `EDEADLK`: this thread may hold a lock, have half of a transaction in its log,
//! or be in a queue.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*, compiler_fence};

/// In the status of a thread that waits; of one that is not to sleep, because a signal came.
pub(crate) const WAITING: u32 = 1;
pub(crate) const INTERRUPTED: u32 = 5;

/// The state of a thread: all in one place, because in a library that is loaded at run time each
/// access to such a place is a function call.
pub(crate) struct Here {
    inside: Cell<u32>,
    put_off: Cell<bool>,
    handled: Cell<u32>,
    /// The status on which this thread sleeps, or is about to.
    sleeps_on: Cell<*const AtomicU32>,
    /// For `peers`: the thread in the namespace that it used last.
    pub current: Cell<*const ()>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            inside: Cell::new(0),
            put_off: Cell::new(false),
            handled: Cell::new(0),
            sleeps_on: Cell::new(std::ptr::null()),
            current: Cell::new(std::ptr::null()),
        }
    };
}

impl Here {
    /// Whether a call is under way, and not another one in the middle of which a handler has begun
    /// it: that one is to be refused.
    #[inline]
    pub fn is_one_call(&self) -> bool {
        self.inside.get() == 1
    }
}

/// Runs `f` on this thread's place.
pub(crate) fn here<R>(f: impl FnOnce(&Here) -> R) -> R {
    HERE.with(f)
}

/// A `fn()` that delivers what was put off.
static DELIVER: AtomicUsize = AtomicUsize::new(0);

/// For the preload library: who delivers signals at a section's end, and calls [`delivered`].
pub fn deliver_with(deliver: fn()) {
    DELIVER.store(deliver as usize, Release);
}

/// Whether each signal that has a handler passes here.
pub(crate) fn are_seen() -> bool {
    DELIVER.load(Acquire) != 0
}

/// For the preload library: a signal has arrived. Whether it must be put off; then
/// [`deliver_with`]'s function is called soon.
pub fn arrived() -> bool {
    here(|here| {
        here.handled.set(here.handled.get().wrapping_add(1));
        let status = here.sleeps_on.get();
        if !status.is_null() {
            // The thread may have looked whether a signal came, and not be asleep yet: then the
            // kernel finds another value, and does not let it sleep.
            // SAFETY: in the mapping, which is never unmapped.
            let _ = unsafe { &*status }.compare_exchange(WAITING, INTERRUPTED, AcqRel, Relaxed);
        }
        // With what was put off before: a handler that began before that is delivered would have it
        // delivered in the middle of itself.
        let later = here.inside.get() != 0 || here.put_off.get();
        here.put_off.set(later);
        later
    })
}

/// Handlers that this thread has run.
pub(crate) fn handled() -> u32 {
    here(|here| here.handled.get())
}

/// Whether a signal waits for the end of this thread's call.
pub(crate) fn put_off() -> bool {
    here(|here| here.put_off.get())
}

/// For the preload library, with all signals blocked: it is about to deliver all that was put off.
pub fn delivered() {
    here(|here| here.put_off.set(false));
}

/// While it lives, a signal ends this thread's sleep on that status, or keeps it from one.
pub(crate) struct Sleeping;

impl Sleeping {
    pub fn on(status: &AtomicU32) -> Sleeping {
        here(|here| here.sleeps_on.set(status));
        compiler_fence(SeqCst);
        Sleeping
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        here(|here| here.sleeps_on.set(std::ptr::null()));
    }
}

/// A call is under way. A signal ends its sleep, and is handled at its end: a handler must not find
/// this thread in a queue.
pub(crate) struct Call {
    /// This thread's; the pointer keeps a call on its thread.
    here: *const Here,
}

impl Call {
    #[inline]
    pub fn begin() -> Call {
        here(|here| {
            here.inside.set(here.inside.get() + 1);
            Call { here }
        })
    }

    #[inline]
    pub fn here(&self) -> &Here {
        // SAFETY: this thread's, without a destructor: it is there as long as the thread runs.
        unsafe { &*self.here }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        let here = self.here();
        here.inside.set(here.inside.get() - 1);
        // A signal from here on finds this thread outside.
        compiler_fence(SeqCst);
        if here.put_off.get() {
            deliver(here);
        }
    }
}

/// For the preload library: runs `f` as a call; not in a handler in the middle of another one.
pub fn in_a_call<R>(f: impl FnOnce() -> R) -> Option<R> {
    let call = Call::begin();
    call.here().is_one_call().then(f)
}

#[cold]
fn deliver(here: &Here) {
    if here.inside.get() != 0 {
        return;
    }
    let deliver = DELIVER.load(Acquire);
    if deliver == 0 {
        here.put_off.set(false);
    } else {
        // SAFETY: stored from such a function only.
        unsafe { std::mem::transmute::<usize, fn()>(deliver)() };
    }
}
