// SPDX-License-Identifier: MIT OR Apache-2.0
// For tests that cannot try every case: how many cases they try, and in which order. Unit tests of
// the library include this file, too, so it has no inner attributes.

use std::time::{Duration, Instant};

/// Counts the samples of a test. It takes as many as fit into a time, and at least a number that
/// does not depend on the machine. `REPRIEVE_SAMPLES=SECONDS` sets the time of each series.
pub struct Samples {
    series: String,
    least: u64,
    taken: std::cell::Cell<u64>,
    start: Instant,
    time: Duration,
}

impl Samples {
    pub fn new(series: impl Into<String>, least: u64) -> Samples {
        let seconds = std::env::var("REPRIEVE_SAMPLES").ok().and_then(|s| s.parse().ok());
        Samples {
            series: series.into(),
            least,
            taken: std::cell::Cell::new(0),
            start: Instant::now(),
            time: Duration::from_secs_f64(seconds.unwrap_or(1.5)),
        }
    }

    /// A case was tried.
    pub fn take(&self) {
        self.taken.set(self.taken() + 1);
    }

    pub fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Whether there were enough.
    pub fn enough(&self) -> bool {
        self.taken() >= self.least
    }

    /// Whether to try another case.
    pub fn go_on(&self) -> bool {
        !self.enough() || self.start.elapsed() < self.time
    }

    /// Ends the series: says how many samples there were, and fails if they were too few.
    #[track_caller]
    pub fn end(self) {
        let (series, taken, time) = (&self.series, self.taken(), self.start.elapsed());
        println!("{series}: {taken} samples in {time:.1?}");
        assert!(self.enough(), "{series}: {taken} samples, and no case left to try");
    }
}

#[allow(dead_code, reason = "not every test needs it")]
/// The numbers from 1 to `length`, in an order in which the first ones, however many are taken, lie
/// all over the range: steps of the golden section.
pub fn spread(length: u64) -> impl Iterator<Item = u64> + Clone {
    let divides = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a > 1
    };
    let mut step = (length as f64 * 0.618) as u64 + 1;
    while divides(step, length) {
        step += 1;
    }
    (0..length).map(move |i| i * step % length + 1)
}
