// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grace periods: their numbers and leaders (`sequence`), the engines that run them, the heavy
//! barrier, the watch over readers that hold them up; [`periods`] ties these together for a domain.
//!
//! Stands on `platform` and `thread`. Only the leader of a grace period, under the lock of its
//! `sequence`, writes what records keep about it; anybody may wait, poll and look.

pub(crate) mod background;
pub(crate) mod cpu_threads;
pub(crate) mod engine;
pub(crate) mod heavy;
#[cfg(not(loom))]
pub(crate) mod periods;
pub(crate) mod sequence;
pub(crate) mod stats;
pub(crate) mod urgency;
pub mod watch;
