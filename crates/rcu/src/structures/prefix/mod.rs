// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PrefixTable`]: the value of the longest prefix that matches an address, as routers look
//! destinations up.
//!
//! `trie` holds the algorithm. It stands beside the ordered map, not on it: addresses are plain
//! bits, which a restartable section may compare, so a lookup is one section.

pub(crate) mod trie;

#[cfg(not(loom))]
mod lookup;
#[cfg(not(loom))]
mod prefix_table;

#[cfg(not(loom))]
pub use super::held::Held;
#[cfg(not(loom))]
pub use prefix_table::{Address, Iter, Prefix, PrefixTable};
