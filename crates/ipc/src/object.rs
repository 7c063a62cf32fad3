// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part that semaphore sets, queues and segments have in common.

use crate::error::Result;
use crate::peers::Local;
use crate::space::layout::{Kind, Lock, Shared};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::*;

/// The head of all objects.
#[repr(C)]
pub(crate) struct Object {
    pub lock: Lock,
    pub id: AtomicU64,
    /// [`ALIVE`] or not: one that is being made, or removed.
    pub state: AtomicU64,
    pub key: AtomicU64,
    /// User, and above it group.
    pub owner: AtomicU64,
    pub creator: AtomicU64,
    pub mode: AtomicU64,
    pub ctime: AtomicU64,
    /// A block that it owns.
    pub block: AtomicU64,
    /// Lists of blocks that it owns, whose first word is the next one.
    pub chains: [AtomicU64; 2],
    /// The object's weight in the total of its kind.
    pub weight: AtomicU64,
}

pub(crate) const ALIVE: u64 = 0x616c_6976;
pub(crate) const DEAD: u64 = 0x6465_6164;

// SAFETY: atomics only.
unsafe impl Shared for Object {}

impl Object {
    #[inline]
    pub fn is(&self, id: i32) -> bool {
        self.state.load(Relaxed) == ALIVE && self.id.load(Relaxed) == id as u64
    }
}

/// A kind of object.
pub(crate) trait Is: Shared {
    const KIND: Kind;
    fn object(&self) -> &Object;
    /// Sends those away who wait for it.
    fn expel(&self, local: &Local, offset: u64) -> Result<()>;
    /// Before its memory goes to limbo. Under its lock.
    fn discard(&self, local: &Local, id: i32);
}
