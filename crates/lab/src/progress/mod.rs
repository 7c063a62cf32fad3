// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress of a run: on a terminal, in plain lines, or as messages of a lab host.

mod terminal;

pub use terminal::for_stderr;

use std::path::Path;
use std::time::Duration;

/// Receiver of progress. All calls are cheap and may come from any thread.
pub trait Progress: Send + Sync {
    /// A step of unknown length began, e.g. `booting membench (guest 6.12)`.
    fn step(&self, what: &str);
    /// A step of known length began.
    fn timed(&self, what: &str, length: Duration);
    /// A message that stays on the screen, e.g. about a boot that is tried again.
    fn notice(&self, text: &str);
    /// A log that the next message names, which is to be kept. It may be moved elsewhere.
    fn keep_log(&self, _: &Path) {}
    /// Estimate of the time left in the whole run.
    fn remaining(&self, left: Duration);
    /// The end: clears what was shown live, to make room for results.
    fn finish(&self) {}
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str) {}
    fn timed(&self, _: &str, _: Duration) {}
    fn notice(&self, _: &str) {}
    fn remaining(&self, _: Duration) {}
}
