// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch over readers that hold grace periods up: stall reports and dead readers.
//!
//! # Who looks, and when
//! The leader of a grace period, when it sleeps between two looks at its readers; every 100 ms for
//! all leaders of the domain together. Readers store no times. When a leader sees for the first
//! time that the section of a reader holds a grace period up, it notes the section (its number is
//! the high half of the reader's word) and the time. As long as the reader's word shows the same
//! section, this time is a lower bound. A leader that gives up leaves its notes to the next.
//!
//! # Reports
//! A section that is known for longer than the time-out is reported, with all others that the grace
//! period waits for: thread, time, whether it is on a CPU (`task`). The next report follows after
//! three times the time-out, as the kernel's do, and so on until the grace period ends. The report
//! goes to the program's hook, or to standard error.
//!
//! # The dead
//! A thread that ends by a bare `exit` system call (or that the C library never knew) inside a
//! section would hold up grace periods for ever. When a section is known for longer than 100 ms,
//! the leader looks for its owner. If that thread is provably dead (`task::dead`), its record is
//! released as at a thread's exit, unless the program has forbidden it. That is sound: only the
//! section's own thread may use the nodes that it protects. (Safe Rust may give references from a
//! guard to other threads, but makes no such system call. A record that a thread left behind with a
//! leaked guard is never released, only reported.)

#[cfg(not(loom))]
pub(crate) mod report;
#[cfg(not(loom))]
pub(crate) mod task;
#[cfg(not(loom))]
mod watcher;

#[cfg(not(loom))]
pub use report::{Laggard, Stall, State};
#[cfg(not(loom))]
pub(crate) use watcher::Watch;

/// A model's grace periods end, or it fails.
#[cfg(loom)]
pub(crate) struct Watch;

use crate::thread::registry::Registry;

/// A leader's wait.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) struct LeaderWait<'a> {
    watch: &'a Watch,
    registry: &'a Registry,
    /// When it began, in nanoseconds of the monotonic clock.
    since: u64,
}

impl<'a> LeaderWait<'a> {
    /// The leader has looked at the readers, and has to wait.
    pub(crate) fn begin(watch: &'a Watch, registry: &'a Registry) -> LeaderWait<'a> {
        let since = crate::grace::stats::uptime().as_nanos() as u64;
        LeaderWait { watch, registry, since }
    }

    /// The leader has slept, and still waits.
    pub(crate) fn slept(&self) {
        #[cfg(not(loom))]
        self.watch.look(self.registry, self.since);
    }
}
