// SPDX-License-Identifier: MIT OR Apache-2.0
//! The head of a callback: the part of a node that a registered callback needs.

/// The function of a callback, called with the head that was registered.
pub type Function = unsafe extern "C" fn(*mut Head);

/// The part of a node (or an allocation of its own) that a waiting callback needs. Plain data,
/// shared with C.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    pub(crate) next: *mut Head,
    pub(crate) function: Option<Function>,
    /// The address that `protect` would have put into a slot, or 0: the callback waits until no
    /// slot holds it. (In the C library's domain for QSBR, whose slots stay empty: its function.)
    pub(crate) node: usize,
    /// Size announced for the cap, in units of 16 bytes.
    pub(crate) units: u32,
    pub(crate) flags: u32,
}

/// The phase of the pending count that the registration was added to.
pub(crate) const PHASE: u32 = 1;
/// The callback does nothing but free memory: any thread may run it, whatever locks it holds.
pub(crate) const LEAF: u32 = 2;
/// A look after the grace period found the node in a slot: the callback waits for guards only, and
/// the queue counts it, not the pending count.
#[cfg(not(loom))]
pub(crate) const HELD: u32 = 4;

impl Head {
    /// A head that waits for nothing.
    pub const fn new() -> Head {
        Head { next: std::ptr::null_mut(), function: None, node: 0, units: 0, flags: 0 }
    }
}

/// Runs a callback.
///
/// # Safety
/// The head is that of a registered callback, whose wait is over. It may be gone when this returns.
#[inline]
pub(crate) unsafe fn run(head: *mut Head) {
    use crate::platform::annotate::{acquire, clock, release};
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(function) = (*head).function {
            acquire(clock());
            function(head);
            release(clock());
        }
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}
