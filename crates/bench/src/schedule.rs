// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a run: several rounds over the jobs of each part, one part after the other. All
//! share the measured time.

use crate::error::Result;
use crate::options::Options;
use crate::result::Recorder;
use std::time::Duration;

/// A sample of one subject; a round takes one of each job.
pub struct Job<'a> {
    /// Progress, for the user.
    pub what: String,
    /// Its share of the time, relative to the others'.
    pub weight: f64,
    /// Runs for about the time given and records what it found.
    pub run: Box<Sample<'a>>,
}

impl<'a> Job<'a> {
    /// A job whose sample is one figure, in that row and column.
    pub fn figure(
        what: String,
        weight: f64,
        (row, column): (usize, usize),
        mut sample: impl FnMut(Duration) -> Result<f64> + 'a,
    ) -> Job<'a> {
        let run = move |length, recorder: &mut Recorder| {
            recorder.add(row, column, sample(length)?);
            Ok(())
        };
        Job { what, weight, run: Box::new(run) }
    }
}

/// Takes one sample.
pub type Sample<'a> = dyn FnMut(Duration, &mut Recorder) -> Result<()> + 'a;

/// The shortest sample that is worth taking.
const SHORTEST: Duration = Duration::from_millis(5);

/// Runs the jobs of each part in rounds, the first part's before the second's. `progress` gets the
/// name of each job that begins, and the share of the run that is over.
///
/// # Errors
/// The first error of a job; `Error::Cancelled` between two jobs.
pub fn rounds(
    parts: [Vec<Job<'_>>; 2],
    options: &Options,
    recorder: &mut Recorder,
    progress: &dyn Fn(&str, f64),
) -> Result<()> {
    let jobs = || parts.iter().flatten();
    let weights: f64 = jobs().map(|j| j.weight).sum();
    let unit = options.length.as_secs_f64() / options.rounds as f64 / weights;
    let all = (options.rounds * jobs().count()) as f64;
    let mut done = 0.0;
    for mut jobs in parts {
        for round in 1..=options.rounds {
            // Forth and back: none always follows the same one and what that has left behind.
            if round > 1 {
                jobs.reverse();
            }
            for job in &mut jobs {
                options.check()?;
                progress(&format!("round {round}: {}", job.what), done / all);
                let length = Duration::from_secs_f64(unit * job.weight).max(SHORTEST);
                (job.run)(length, recorder)?;
                done += 1.0;
            }
        }
    }
    options.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn rounds_go_forth_and_back_and_all_of_a_part_come_before_the_next_part() {
        let options = Options::plain(Duration::from_millis(1), 2);
        let job = |what: &str| Job {
            what: what.into(),
            weight: 1.0,
            run: Box::new(|length, _| {
                assert_eq!(length, SHORTEST);
                Ok(())
            }),
        };
        let told = RefCell::new(vec![]);
        let progress = |what: &str, done: f64| told.borrow_mut().push((what.to_owned(), done));
        let parts = [vec![job("a"), job("b")], vec![job("c"), job("d")]];
        rounds(parts, &options, &mut Recorder::new(vec![]), &progress).unwrap();
        let expected = ["1: a", "1: b", "2: b", "2: a", "1: c", "1: d", "2: d", "2: c"];
        let expected = expected.iter().enumerate();
        let expected: Vec<_> =
            expected.map(|(i, what)| (format!("round {what}"), i as f64 / 8.0)).collect();
        assert_eq!(told.into_inner(), expected);
    }
}
