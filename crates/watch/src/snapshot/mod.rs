// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the collector's state to the data model: snapshots and events.

pub mod events;
pub mod takers;
pub mod view;
mod visibility;
