// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the lab tells what it is doing; the command decides how that looks.

use std::time::Duration;

/// Receiver of progress. All calls are cheap and may come from any thread.
pub trait Progress: Send + Sync {
    /// A step of unknown length began, e.g. `booting membench (guest 6.12)`.
    fn step(&self, what: &str);
    /// A step of known length began.
    fn timed(&self, what: &str, length: Duration);
    /// Something the user should see even when it scrolls by, e.g. a retried boot.
    fn notice(&self, text: &str);
    /// Estimate of the time left in the whole run.
    fn remaining(&self, left: Duration);
    /// Nothing more will come: what was shown live makes room for results.
    fn finish(&self) {}
}

/// Says nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str) {}
    fn timed(&self, _: &str, _: Duration) {}
    fn notice(&self, _: &str) {}
    fn remaining(&self, _: Duration) {}
}
