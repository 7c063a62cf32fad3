// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a grace period takes while readers are preempted in the middle of their sections
//! ([IPC], figure 7's successor).
//!
//! Readers look up random keys without a pause, more of them than there are CPUs. A writer replaces
//! a node, waits for the grace period, frees the node, and rests for a millisecond. Where a subject
//! has no call that waits (crossbeam, seize), the time until the node is freed is taken, with the
//! writer flushing at once and then every 50 us; haphazard likewise. For a reader-writer lock it is
//! the time to get the lock.
//!
//! **update**: in samples of its own, how long the writer takes to replace a node and hand the old
//! one over (`call_rcu`, or the subject's like; for a lock: to get it, replace, free) without
//! waiting for anything. Whoever calls must never wait for a grace period that takes long.
//!
//! **--churn**: readers come and go, each after some thousand lookups, and what is timed begins
//! with the first of them: no grace period is left out as warming up, those of the process's very
//! first readers included. No thread's start may cost others a long grace period: the maximum shows
//! it.
//!
//! All rounds' samples together give mean, median, p99 and maximum; the spread is that of the
//! rounds. **samples** is the number of grace periods that were timed. There is no p99 of fewer
//! than [`FEWEST`]: it would be their maximum.

use super::{Prepared, column, reader_label};
use crate::clock;
use crate::error::Result;
use crate::options::Options;
use crate::peer::Writer;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit, quantile};
use crate::schedule::Job;
use crate::subject::{Class, Kind, choose};
use crate::table::{Node, Table, next_seed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A protected reference waits for the same grace periods as a lookup; arc-swap and the floor have
/// none.
fn takes_part(kind: &Kind) -> bool {
    !matches!(kind, Kind::Protect | Kind::ArcSwap | Kind::Floor | Kind::FloorC)
}

/// What is shown beside grace periods, and is none.
fn class(kind: Kind) -> Class {
    match kind {
        Kind::Haphazard | Kind::StdRwLock | Kind::ParkingLot => Class::Other,
        _ => kind.class(),
    }
}

/// All grace periods by row and first column, in milliseconds, and all updates, in microseconds.
#[derive(Default)]
pub struct Samples(RefCell<BTreeMap<(usize, usize), Vec<f64>>>);

/// A figure of all samples.
type Statistic = (&'static str, fn(&[f64]) -> f64);

/// Samples of which a p99 is shown.
const FEWEST: usize = 100;

const STATISTICS: [Statistic; 5] = [
    ("mean", |samples| samples.iter().sum::<f64>() / samples.len().max(1) as f64),
    ("p50", |samples| quantile(samples, 0.5)),
    ("p99", |samples| quantile(samples, 0.99)),
    ("max", |samples| quantile(samples, 1.0)),
    ("samples", |samples| samples.len() as f64),
];
/// The p99 among them.
const P99: usize = 2;
/// First columns of grace periods and of updates (which have no maximum: too many are timed for it
/// to say more than that something was preempted).
const PERIODS: usize = 0;
const UPDATES: usize = STATISTICS.len();
/// How many of them updates have.
const OF_UPDATES: usize = 3;

fn figures(first: usize, samples: &[f64]) -> impl Iterator<Item = (usize, f64)> {
    let count = if first == UPDATES { OF_UPDATES } else { STATISTICS.len() };
    STATISTICS[..count].iter().enumerate().map(move |(i, (_, f))| (first + i, f(samples)))
}

impl Samples {
    /// Replaces medians of rounds by figures of all their samples.
    pub fn pool(&self, recorder: &mut Recorder) {
        for (&(row, first), samples) in self.0.borrow().iter() {
            for (column, value) in figures(first, samples) {
                recorder.pool(row, column, value);
            }
            if samples.len() < FEWEST {
                recorder.leave_out(row, first + P99);
            }
        }
    }

    fn add(&self, recorder: &mut Recorder, row: usize, first: usize, round: Vec<f64>) {
        for (column, value) in figures(first, &round) {
            recorder.add(row, column, value);
        }
        self.0.borrow_mut().entry((row, first)).or_default().extend(round);
    }
}

pub fn prepare<'a>(options: &'a Options, samples: &'a Samples) -> Result<Prepared<'a>> {
    let mut recorder = Recorder::new(columns());
    let mut kinds = choose(&Kind::ALL, &options.against)?;
    kinds.retain(takes_part);
    for kind in &mut kinds {
        if *kind == Kind::Seize {
            *kind = Kind::SeizeFlushed;
        }
    }
    let mut jobs = vec![];
    for &n in &options.readers {
        for &kind in &kinds {
            let row = recorder.row(&reader_label(n), kind.name(), class(kind));
            jobs.push(Job {
                what: format!("{}, {}", reader_label(n), kind.name()),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    samples.add(recorder, row, PERIODS, periods(kind, n, length, options)?);
                    Ok(())
                }),
            });
            // Flushing is for the sake of grace periods that are waited for.
            let kind = if kind == Kind::SeizeFlushed { Kind::Seize } else { kind };
            jobs.push(Job {
                what: format!("updates, {}, {}", reader_label(n), kind.name()),
                weight: 0.25,
                run: Box::new(move |length, recorder| {
                    samples.add(recorder, row, UPDATES, updates(kind, n, length, options)?);
                    Ok(())
                }),
            });
        }
    }
    let mut notes = vec![
        "time from unlinking a node to being allowed to free it. crossbeam, seize, haphazard: until it is freed. rwlock: until the lock is held".into(),
        "update: replacing a node and handing the old one over, without waiting; rwlock: with the lock, which readers hold".into(),
        "ratios are to the best peer that has grace periods: haphazard and the locks are shown beside them".into(),
        "mean, p50, p99, max and samples of all rounds together; below them the smallest and largest of the rounds".into(),
        format!("samples: grace periods timed; no p99 of fewer than {FEWEST}, of updates neither"),
    ];
    if options.churn {
        notes.push(format!(
            "readers come and go, each after {} lookups; nothing is left out as warming up",
            readers::LIFE * readers::BATCH
        ));
    }
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

fn columns() -> Vec<Column> {
    let part = |what: &'static str, count, unit, charted: &'static [&'static str]| {
        STATISTICS[..count].iter().map(move |(title, _)| Column {
            charted: charted.contains(title),
            ..column(format!("{what}{title}"), if *title == "samples" { Unit::Count } else { unit })
        })
    };
    let periods = part("", STATISTICS.len(), Unit::Milliseconds, &["mean", "p99"]);
    periods.chain(part("update, ", OF_UPDATES, Unit::Microseconds, &["p99"])).collect()
}

/// The writer rests this long between two grace periods, or two bursts of updates.
const REST: Duration = Duration::from_millis(1);

/// Grace periods of one sample, in milliseconds; at least one.
fn periods(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<Vec<f64>> {
    sample(kind, readers, length, options, |writer, key, times| {
        times.push(writer.replace_and_wait(key())?.as_secs_f64() * 1e3);
        Ok(())
    })
}

/// Durations of updates of one sample, in microseconds; at least a burst.
fn updates(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<Vec<f64>> {
    /// A writer that finds the CPUs taken gets one rarely: enough updates each time for a p99.
    const BURST: usize = 8;
    sample(kind, readers, length, options, |writer, key, times| {
        for _ in 0..BURST {
            let key = key();
            let start = clock::now();
            writer.replace(key);
            times.push((clock::now() - start) as f64 / 1e3);
        }
        Ok(())
    })
}

/// Calls `once` (with the writer, a source of keys, and where times go) again and again for
/// `length`, with a rest in between, while readers look up.
fn sample(
    kind: Kind,
    readers: usize,
    length: Duration,
    options: &Options,
    once: impl Fn(&mut dyn Writer, &mut dyn FnMut() -> u64, &mut Vec<f64>) -> Result<()>,
) -> Result<Vec<f64>> {
    let table = Table::hash(size_of::<Node>());
    let body = |writer: &mut dyn Writer| {
        let end = Instant::now() + length;
        let mut times = vec![];
        let mut seed = 12345;
        let mut key = || {
            seed = next_seed(seed);
            table.key(seed)
        };
        loop {
            options.check()?;
            once(writer, &mut key, &mut times)?;
            if Instant::now() >= end {
                return Ok(times);
            }
            std::thread::sleep(REST);
        }
    };
    let (times, _) = if options.churn {
        readers::churn(kind, &table, readers, body)?
    } else {
        readers::run(kind, &table, readers, Work::Lookups, body)?
    };
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p99_takes_a_hundred_samples_of_all_rounds() {
        let samples = Samples::default();
        let mut recorder = Recorder::new(columns());
        for (subject, count) in [("few", 49), ("enough", 50)] {
            let row = recorder.row("", subject, Class::Peer);
            for round in [1.0, 2.0] {
                samples.add(&mut recorder, row, PERIODS, vec![round; count]);
                samples.add(&mut recorder, row, UPDATES, vec![round; count]);
            }
        }
        samples.pool(&mut recorder);
        let (columns, rows) = recorder.finish();
        let find = |title| columns.iter().position(|c| c.title == title).unwrap();
        let value = |row: usize, title| Some(rows[row].figures[find(title)].as_ref()?.value);
        for title in ["p99", "update, p99"] {
            assert_eq!([value(0, title), value(1, title)], [None, Some(2.0)], "{title}");
        }
        assert_eq!([value(0, "max"), value(0, "update, p50")], [Some(2.0), Some(1.5)]);
        assert_eq!([value(0, "samples"), value(1, "samples")], [Some(98.0), Some(100.0)]);
        let count = rows[0].figures[find("samples")].as_ref().unwrap();
        assert_eq!((count.min, count.max, count.to_best_peer), (49.0, 49.0, None));
    }
}
