// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that arrive in the middle of a section.
//!
//! A handler that used an object whose lock its own thread holds would wait for itself. The preload
//! library therefore stands before the program's handlers: in a section it puts the signal off to
//! the section's end. It also counts handlers, so that a wait knows that one ran between two of its
//! looks.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::*};

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static PUT_OFF: Cell<bool> = const { Cell::new(false) };
    static HANDLED: Cell<u32> = const { Cell::new(0) };
}

/// A `fn()` that delivers what was put off.
static DELIVER: AtomicUsize = AtomicUsize::new(0);

/// For the preload library: who delivers signals at a section's end.
pub fn deliver_with(deliver: fn()) {
    DELIVER.store(deliver as usize, Release);
}

/// For the preload library: a signal has arrived. Whether it must be put off; then
/// [`deliver_with`]'s function is called soon.
pub fn arrived() -> bool {
    HANDLED.set(HANDLED.get().wrapping_add(1));
    let inside = INSIDE.get() != 0;
    if inside {
        PUT_OFF.set(true);
    }
    inside
}

/// Handlers that this thread has run.
pub(crate) fn handled() -> u32 {
    HANDLED.get()
}

/// Whether a signal waits for the end of this thread's call.
pub(crate) fn put_off() -> bool {
    PUT_OFF.get()
}

/// A call is under way. A signal ends its sleep, and is handled at its end: a handler must not find
/// this thread in a queue.
pub(crate) struct Call;

impl Call {
    #[inline]
    pub fn begin() -> Call {
        INSIDE.set(INSIDE.get() + 1);
        Call
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
        after_section();
    }
}

#[inline]
pub(crate) fn after_section() {
    if PUT_OFF.get() {
        deliver();
    }
}

#[cold]
fn deliver() {
    if INSIDE.get() != 0 {
        return;
    }
    PUT_OFF.set(false);
    let deliver = DELIVER.load(Acquire);
    if deliver != 0 {
        // SAFETY: stored from such a function only.
        unsafe { std::mem::transmute::<usize, fn()>(deliver)() };
    }
}
