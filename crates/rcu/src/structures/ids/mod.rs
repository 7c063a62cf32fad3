// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdTable`]: objects found by number, as System V IPC finds its semaphores, queues and segments.
//!
//! # The pattern (FREENIX 2003, section 5)
//! Inside a read-side section the object is found in an array, without a lock; then its own lock is
//! taken, then its `deleted` flag looked at. Removal sets the flag under that lock, takes the
//! object out of the array, and frees it after a grace period. So a thread that holds the lock and
//! saw the flag clear has an object that is in the table until the lock is released. A thread that
//! comes late, through a stale array or a stale pointer, acts as if it had found nothing. The array
//! grows by copy: `table` has the order.
//!
//! # Ids
//! An [`Id`] is an index and a generation, which advances each time the index is given to another
//! object. An id of a removed object names nothing, for ever: an index whose generations are used
//! up is not used again.
//!
//! # Locks
//! An object's lock comes before the table's: `remove` takes the first, then the second; `insert`
//! takes the second only.

pub(crate) mod table;

#[cfg(not(loom))]
mod entry;
#[cfg(not(loom))]
mod id;
#[cfg(not(loom))]
mod id_table;

#[cfg(not(loom))]
pub use entry::{Entry, Live};
#[cfg(not(loom))]
pub use id::Id;
#[cfg(not(loom))]
pub use id_table::{IdTable, Iter};
