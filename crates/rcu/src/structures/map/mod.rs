// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Map`]: a hash map whose readers take no locks, and which grows without stopping them.
//!
//! `table` holds the algorithm (two links per item, so that a new table is threaded while readers
//! walk the old one), `lookup` the restartable lookups, `write` the updates. Writers lock one of 16
//! stripes. No writer waits for a grace period, so all calls are allowed in sections.
//!
//! The table grows when chains hold more than `load` items on average, if the previous growth is a
//! grace period ago. A writer that finds the table far too small makes that grace period, if nobody
//! is inside a plain section. Else keys that were inserted faster than grace periods end would
//! leave long chains to later readers. `shrink_to_fit` makes the table smaller.
//!
//! # What readers see
//! Each lookup finds the value that was current at some moment while it ran. An iteration yields
//! each key that is in the map all the while exactly once (a new table does not disturb it), and
//! may or may not see what is inserted, replaced or removed meanwhile.

pub(crate) mod table;

#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod hash_map;
#[cfg(not(loom))]
mod iter;
#[cfg(not(loom))]
mod lookup;
#[cfg(not(loom))]
mod resize;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use super::calls::Change;
#[cfg(not(loom))]
pub use super::held::Held;
#[cfg(not(loom))]
pub use builder::Builder;
#[cfg(not(loom))]
pub use hash_map::Map;
#[cfg(not(loom))]
pub use iter::{Iter, IterIn};
#[cfg(not(loom))]
pub use write::Entry;
