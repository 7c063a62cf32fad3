// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linked lists.

pub(crate) mod links;
#[cfg(not(loom))]
mod owned;
#[cfg(not(loom))]
mod scan;

#[cfg(not(loom))]
pub use owned::List;
#[cfg(not(loom))]
pub use scan::Iter;
