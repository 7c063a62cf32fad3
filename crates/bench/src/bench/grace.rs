// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a grace period takes while readers are preempted in the middle of their sections ([IPC], figure 7's successor).
//!
//! Readers look up random keys without a pause, more of them than there are CPUs. A writer replaces a node, waits for the grace period, frees
//! the node, and rests for a millisecond. Where a subject has no call that waits (crossbeam, seize), the time until the node is freed is taken, with
//! the writer flushing at once and then every 50 us; haphazard likewise. For a reader-writer lock it is the time to get the lock.
//!
//! All rounds' grace periods together give mean, median, p99 and maximum; the spread is that of the rounds.

use super::{Prepared, column, readers};
use crate::Options;
use crate::crew::{self, Work};
use crate::error::Result;
use crate::result::{Recorder, Unit, quantile};
use crate::schedule::Job;
use crate::subject::{Class, Kind, choose};
use crate::table::{Node, Table, next_seed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A protected reference waits for the same grace periods as a lookup; arc-swap and the floor have none.
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

/// All grace periods by row, in milliseconds.
#[derive(Default)]
pub struct Samples(RefCell<BTreeMap<usize, Vec<f64>>>);

fn figures(samples: &[f64]) -> [f64; 4] {
    let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    [mean, quantile(samples, 0.5), quantile(samples, 0.99), quantile(samples, 1.0)]
}

impl Samples {
    /// Replaces medians of rounds by figures of all grace periods.
    pub fn pool(&self, recorder: &mut Recorder) {
        for (&row, samples) in self.0.borrow().iter() {
            for (column, value) in figures(samples).into_iter().enumerate() {
                recorder.pool(row, column, value);
            }
        }
    }
}

pub fn prepare<'a>(options: &'a Options, samples: &'a Samples) -> Result<Prepared<'a>> {
    let mut recorder = Recorder::new(
        ["mean", "p50", "p99", "max"]
            .map(|title| {
                let mut column = column(title, Unit::Milliseconds);
                column.charted = matches!(title, "mean" | "p99");
                column
            })
            .into(),
    );
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
            let row = recorder.row(&readers(n), kind.name(), class(kind));
            jobs.push(Job {
                what: format!("{}, {}", readers(n), kind.name()),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let times = sample(kind, n, length, options)?;
                    for (column, value) in figures(&times).into_iter().enumerate() {
                        recorder.add(row, column, value);
                    }
                    samples.0.borrow_mut().entry(row).or_default().extend(times);
                    Ok(())
                }),
            });
        }
    }
    let notes = vec![
        "time from unlinking a node to being allowed to free it. crossbeam, seize, haphazard: until it is freed. rwlock: until the lock is held".into(),
        "ratios are to the best peer that has grace periods: haphazard and the locks are shown beside them".into(),
        "mean, p50, p99 and max of all rounds together; below them the smallest and largest of the rounds".into(),
    ];
    Ok(Prepared {
        title: "how long a grace period takes while readers are preempted in their sections",
        notes,
        recorder,
        jobs,
    })
}

/// Grace periods of one sample, in milliseconds; at least one.
fn sample(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<Vec<f64>> {
    const REST: Duration = Duration::from_millis(1);
    let table = Table::hash(size_of::<Node>());
    let (times, _) = crew::run(kind, &table, readers, Work::Lookups, |writer| {
        let end = Instant::now() + length;
        let mut times = vec![];
        let mut seed = 12345;
        loop {
            options.check()?;
            seed = next_seed(seed);
            times.push(writer.replace_and_wait(table.key(seed))?.as_secs_f64() * 1e3);
            if Instant::now() >= end {
                return Ok(times);
            }
            std::thread::sleep(REST);
        }
    })?;
    Ok(times)
}
