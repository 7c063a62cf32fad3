// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks: work to do after a grace period, in most cases a free.
//!
//! A registration pushes an intrusive [`Head`] on the list of the CPU it runs on and adds to that list's account ([`list`]). One worker per
//! CPU with callbacks, started when first needed and bound to that CPU, takes what has gathered, waits for one grace period (shared with
//! all other workers and callers), looks into the protection slots, and runs the batch ([`queue`], [`worker`]): callbacks run where
//! they were registered, in no particular order.
//!
//! # Memory stays bounded
//! A domain has a cap on the bytes and the number of callbacks waiting ([`cap`]). A registration that finds it exceeded first has grace
//! periods driven at once, then helps itself: it drives one, with a deadline, and runs the callbacks that are mere frees; or
//! it waits for the worker, a bounded time. It does neither inside a section, or in a callback, and never runs a callback that
//! may take a lock, since the caller may hold that lock. Below the cap a registration waits for nothing.
//!
//! So the cap bounds what piles up because nobody drives grace periods or runs callbacks. It cannot bound what waits for a plain section that does not
//! end: then each thread that registers still gets through 32 callbacks in some 20 ms, and a thread inside a section (every online `Qsbr`
//! thread is) as many as it likes.

pub(crate) mod list;

#[cfg(not(loom))]
pub(crate) mod cap;
#[cfg(not(loom))]
pub(crate) mod queue;
#[cfg(not(loom))]
pub(crate) mod worker;

/// What a callback is called with: the head that was registered.
pub type Function = unsafe extern "C" fn(*mut Head);

/// The part of a node (or an allocation of its own) that a waiting callback needs. Plain data, shared with C.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    pub(crate) next: *mut Head,
    pub(crate) function: Option<Function>,
    /// The address that `protect` would have put into a slot, or 0: the callback waits until no slot holds it.
    pub(crate) node: usize,
    /// Size announced for the cap, in units of 16 bytes.
    pub(crate) units: u32,
    pub(crate) flags: u32,
}

/// The account that the registration was added to.
pub(crate) const PHASE: u32 = 1;
/// The callback does nothing but free memory: any thread may run it, whatever locks it holds.
pub(crate) const LEAF: u32 = 2;

impl Head {
    /// A head that waits for nothing.
    pub const fn new() -> Head {
        Head { next: std::ptr::null_mut(), function: None, node: 0, units: 0, flags: 0 }
    }
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}
