// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a thread: its block, its record in the registry of each domain, the protection
//! slots and the callback buffer in the record. Also the ids of domains and the heads of callbacks,
//! which these name.
//!
//! Stands on `platform`. A thread writes its own block, reader word, slots and buffer without locks
//! and in signal handlers; each module says what others may read, and after which barrier.

pub(crate) mod buffer;
pub(crate) mod checkpoints;
pub(crate) mod head;
#[cfg(not(loom))]
pub(crate) mod id;
pub(crate) mod list;
pub(crate) mod load;
pub(crate) mod pool;
pub(crate) mod protected;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod slots;

#[cfg(not(loom))]
mod block;
#[cfg(not(loom))]
pub(crate) use block::*;
