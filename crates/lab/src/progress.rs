// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress of a run: lines on standard error, or messages of a lab host.

use reprieve_page::plain_lines;
use std::fmt::Arguments;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Receiver of progress. All calls are cheap and may come from any thread.
pub trait Progress: Send + Sync {
    /// A step of unknown length began, e.g. `booting membench (guest 6.12)`.
    fn step(&self, what: &str);
    /// A step of known length began.
    fn timed(&self, what: &str, length: Duration);
    /// A message, e.g. about a boot that is tried again.
    fn notice(&self, text: &str);
    /// A log that the next message names, which is to be kept. It may be moved elsewhere.
    fn keep_log(&self, _: &Path) {}
    /// Estimate of the time left in the whole run.
    fn remaining(&self, left: Duration);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: &str) {}
    fn timed(&self, _: &str, _: Duration) {}
    fn notice(&self, _: &str) {}
    fn remaining(&self, _: Duration) {}
}

/// Lines on standard error, with the time since this was made.
pub struct Lines {
    start: Instant,
    /// The expected end of the run, if it is known.
    end: Mutex<Option<Instant>>,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { start: Instant::now(), end: Mutex::default() }
    }
}

impl Lines {
    fn line(&self, text: Arguments) {
        let (seconds, text) = (self.start.elapsed().as_secs_f64(), plain_lines(&text.to_string()));
        // A closed standard error must not end a run.
        let _ = writeln!(std::io::stderr(), "[{seconds:>5.1} s] {text}");
    }
}

impl Progress for Lines {
    fn step(&self, what: &str) {
        self.line(format_args!("{what}"));
    }

    fn timed(&self, what: &str, length: Duration) {
        let end = *self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.map(|left| format!(", about {} left", brief(left))).unwrap_or_default();
        self.line(format_args!("{what} ({}){left}", brief(length)));
    }

    fn notice(&self, text: &str) {
        self.line(format_args!("{text}"));
    }

    fn remaining(&self, left: Duration) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + left);
    }
}

fn brief(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=119 => format!("{s} s"),
        s => format!("{} min", s.div_ceil(60)),
    }
}
