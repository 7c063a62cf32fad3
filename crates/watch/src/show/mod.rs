// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that shows or stores the figures of [`Watch`](crate::collector::Watch). The code
//! sees the data model only, so the same code presents a live collector, a recording, and the
//! made-up values of tests.
//!
//! Counters in a snapshot are totals. [`activity`] turns two snapshots into what happened between
//! them; the other modules show that:
//! - [`terminal`]: the live view;
//! - [`lines`] and [`summary`]: where no terminal is, and at the end of a run of given length;
//! - [`prometheus`]: metrics by HTTP;
//! - [`recording`] and [`trace`]: a file of events, and its time lines for a viewer of traces.
//!
//! Names and functions come from guests, who may put anything there: whatever leaves this module
//! went through [`text::plain`] or an escaping writer.

pub mod activity;
pub mod histogram;
pub mod lines;
pub mod prometheus;
pub mod recording;
pub mod summary;
pub mod terminal;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod trace;
pub mod verdict;

use crate::model::{Event, Snapshot};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a [`Source`] has no snapshot.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where snapshots come from.
pub trait Source {
    /// The state now.
    fn snapshot(&mut self) -> Result<Snapshot, SourceError>;
    /// Events since the last call, in order of time.
    fn events(&mut self) -> Vec<Event>;
}

/// Longest time until a request to end is noticed, and until events are fetched.
const STEP: Duration = Duration::from_millis(100);

/// Hands every snapshot to `each`, one per `interval` and one at the end, until `length` has passed
/// or `end` is set.
pub fn drive(
    source: &mut dyn Source,
    interval: Duration,
    length: Option<Duration>,
    end: &AtomicBool,
    mut each: impl FnMut(Snapshot) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let start = Instant::now();
    let mut next = start;
    loop {
        let elapsed = start.elapsed();
        let over = end.load(Ordering::Relaxed) || length.is_some_and(|l| elapsed >= l);
        source.events();
        if over || Instant::now() >= next {
            each(source.snapshot()?)?;
            // A collector that is slower than the interval is asked again at once, not several
            // times.
            next = (next + interval).max(Instant::now());
        }
        if over {
            return Ok(());
        }
        let left = length.map_or(STEP, |l| l.saturating_sub(elapsed));
        std::thread::sleep(STEP.min(left).min(next.saturating_duration_since(Instant::now())));
    }
}

impl Source for crate::collector::Watch {
    fn snapshot(&mut self) -> Result<Snapshot, SourceError> {
        Ok(crate::collector::Watch::snapshot(self)?)
    }

    fn events(&mut self) -> Vec<Event> {
        crate::collector::Watch::events(self)
    }
}
