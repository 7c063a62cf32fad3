// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks: work to do after a grace period, in most cases a free.
//!
//! A registration links an intrusive [`Head`] into its thread's own stash ([`stash`]), which is emptied onto the lists of the CPU it was opened on when
//! it is full, or when its owner has left it alone for a while ([`intake`]); what waits is the difference of two sums ([`account`]). One worker per
//! CPU with callbacks, started when first needed and bound to that CPU, takes what has gathered, waits for one grace period (shared with
//! all other workers and callers), looks into the protection slots, and runs the batch ([`alarm`], [`worker`], [`queue`]): callbacks run where
//! they were registered, in no particular order.
//!
//! # Memory stays bounded
//! A domain has two caps on the bytes and the number of callbacks waiting ([`cap`]). Below the soft one a registration waits for nothing, no
//! membarrier either. Near it, it helps with callbacks that are mere frees, as long as a grace period is a matter of microseconds. Above
//! the hard one it waits until there is room, a bounded time. It does neither inside a section, or in a callback, and never runs a callback that
//! may take a lock, since the caller may hold that lock.
//!
//! So the cap bounds what piles up because nobody drives grace periods or runs callbacks, and what waits for plain readers that are merely slow.
//! It cannot bound what waits for a plain section that does not end: then each thread that registers still gets through 32 callbacks in
//! some 20 ms, and a thread inside a section (every online `Qsbr` thread is) as many as it likes.

pub(crate) mod account;
pub(crate) mod alarm;
pub(crate) mod intake;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod stash;

#[cfg(not(loom))]
pub(crate) mod audit;
#[cfg(not(loom))]
pub(crate) mod cap;
#[cfg(not(loom))]
pub(crate) mod queue;
#[cfg(not(loom))]
pub(crate) mod register;
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
