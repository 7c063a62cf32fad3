// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a run: several rounds over all jobs, which share the measured time.

use crate::error::Result;
use crate::options::Options;
use crate::result::Recorder;
use std::time::Duration;

/// One sample of one subject; a round takes one of each job.
pub struct Job<'a> {
    /// What the user sees while it runs.
    pub what: String,
    /// Its share of the time, relative to the others'.
    pub weight: f64,
    /// Runs for about the time given and records what it found.
    pub run: Box<Sample<'a>>,
}

/// Takes one sample.
pub type Sample<'a> = dyn FnMut(Duration, &mut Recorder) -> Result<()> + 'a;

/// The shortest sample that is worth taking.
const SHORTEST: Duration = Duration::from_millis(5);

/// Runs all jobs in rounds. `progress` gets the name of each job that begins, and the share of the
/// run that is over.
///
/// # Errors
/// The first error of a job; `Error::Cancelled` between two jobs.
pub fn rounds(
    mut jobs: Vec<Job<'_>>,
    options: &Options,
    recorder: &mut Recorder,
    progress: &dyn Fn(&str, f64),
) -> Result<()> {
    let weights: f64 = jobs.iter().map(|j| j.weight).sum();
    let unit = options.length.as_secs_f64() / options.rounds as f64 / weights;
    let all = (options.rounds * jobs.len()) as f64;
    let mut done = 0.0;
    for round in 1..=options.rounds {
        for job in &mut jobs {
            options.check()?;
            progress(&format!("round {round}: {}", job.what), done / all);
            let length = Duration::from_secs_f64(unit * job.weight).max(SHORTEST);
            (job.run)(length, recorder)?;
            done += 1.0;
        }
    }
    options.check()
}
