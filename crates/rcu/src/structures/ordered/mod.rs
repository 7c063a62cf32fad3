// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`OrderedMap`]: a map in the order of its keys, whose readers take no lock.
//!
//! # Why a skip list under one lock
//! A lookup compares keys by the program's own `Ord`, which may not run inside a restartable
//! section. So a reader compares outside, with a key that it protects, and enters a section for
//! each *hop* from one item to the next ([`search`]). In a skip list a hop is one link of one item,
//! and items stay where they are: keys need no `Clone`, and a held item costs no copy. The nodes of
//! a B-tree hold several keys: writers would copy keys, or readers would protect node and key.
//!
//! Writers exclude each other by one lock, under which they search and change links ([`links`]).
//! They wait for no grace period and enter no section, so no grace period waits for them. A
//! skip list without locks would need links that are marked and changed in one step, helpers, and
//! retries in each update.
//!
//! # What readers see
//! Each lookup finds what was there at some moment while it ran. A scan yields keys in ascending
//! order, and each key that is in the map all the while exactly once; it may or may not see what is
//! inserted, replaced or removed meanwhile.

pub(crate) mod links;

#[cfg(not(loom))]
mod ordered_map;
#[cfg(not(loom))]
mod range;
#[cfg(not(loom))]
mod search;
#[cfg(not(loom))]
mod write;

#[cfg(not(loom))]
pub use super::calls::Change;
#[cfg(not(loom))]
pub use super::held::Held;
#[cfg(not(loom))]
pub use ordered_map::OrderedMap;
#[cfg(not(loom))]
pub use range::{Iter, Range, RangeIn};
#[cfg(not(loom))]
pub use write::Entry;
