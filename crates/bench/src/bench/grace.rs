// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a grace period takes while readers are preempted in the middle of their sections
//! ([IPC], figure 7's successor).
//!
//! Readers look up random keys without a pause, more of them than there are CPUs. A writer replaces
//! a node, waits for the grace period, frees the node, and rests for a millisecond. Where a subject
//! has no call that waits (crossbeam, sdd, seize), the time until the node is freed is taken, with
//! the writer flushing at once and then every 50 us; haphazard likewise. For a reader-writer lock
//! it is the time to get the lock.
//!
//! **update**: in samples of its own, how long the writer takes to replace a node and hand the old
//! one over (`call_rcu`, or the subject's like; for a lock: to get it, replace, free) without
//! waiting for anything. Whoever calls must never wait for a grace period that takes long.
//!
//! **interrupts, waits**: how often, per grace period, a CPU was interrupted to call a function
//! (`/proc/interrupts`, whoever asked for it) and the writer gave its CPU up. They tell how the
//! cost grows with the number of CPUs.
//!
//! **--neighbour**: beside another process ([`Neighbour`]), for what reads by restartable lookups,
//! and for liburcu's flavor that waits by membarriers.
//!
//! All rounds' samples together give mean, median, p99 and maximum; the spread is that of the
//! rounds. **samples** is the number of grace periods that were timed. There is no p99 of fewer
//! than [`FEWEST`]: it would be their maximum.

use super::{Prepared, column, reader_label};
use crate::clock;
use crate::error::Result;
use crate::machine;
use crate::neighbour::Cgroup;
use crate::options::{Neighbour, Options};
use crate::peer::Writer;
use crate::readers::{self, Work};
use crate::result::{Column, FEWEST, Recorder, Shown, Statistic, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Flavor, Kind, choose};
use crate::table::{Node, Table, next_seed};
use std::time::{Duration, Instant};

/// A protected reference waits for the same grace periods as a lookup; arc-swap and the floor have
/// none.
fn takes_part(kind: &Kind) -> bool {
    !matches!(kind, Kind::Protect | Kind::ArcSwap | Kind::Floor | Kind::FloorC)
}

/// Peers without grace periods are shown beside the others, not compared.
fn class(kind: Kind) -> Class {
    match kind {
        Kind::Haphazard | Kind::StdRwLock => Class::Other,
        _ => kind.class(),
    }
}

const PERIODS: Shown = &[
    (0, Statistic::Mean),
    (1, Statistic::Median),
    (2, Statistic::P99),
    (3, Statistic::Max),
    (4, Statistic::Samples),
];
/// No maximum: too many are timed for it to say more than that something was preempted.
const UPDATES: Shown = &[(5, Statistic::Mean), (6, Statistic::Median), (7, Statistic::P99)];

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut recorder = Recorder::new(columns());
    let mut kinds = choose(&Kind::ALL, &options.against)?;
    kinds.retain(takes_part);
    for kind in &mut kinds {
        if *kind == Kind::Seize {
            *kind = Kind::SeizeFlushed;
        }
    }
    let throttled = options.neighbours.contains(&Neighbour::Throttled);
    let lacking = throttled.then(Cgroup::new).and_then(Result::err);
    let mut jobs = vec![];
    let beside = |n| options.neighbours.iter().map(move |&neighbour| (n, neighbour));
    for (n, neighbour) in options.readers.iter().copied().flat_map(beside) {
        let group = reader_label(n) + neighbour.beside();
        let by_membarrier = |kind: &Kind| matches!(kind, Kind::Restart | Kind::Urcu(Flavor::Memb));
        for &kind in kinds.iter().filter(|k| neighbour == Neighbour::None || by_membarrier(k)) {
            let row = recorder.row(&group, kind.name(), class(kind));
            if neighbour == Neighbour::Throttled && lacking.is_some() {
                continue;
            }
            jobs.push(Job {
                what: format!("{group}, {}", kind.name()),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let _running = neighbour.start(options)?;
                    let (times, counts) = periods(kind, n, length, options)?;
                    recorder.add_samples(row, PERIODS, &times);
                    let figures = counts.into_iter().zip(COUNTS..);
                    // Those of a neighbour are among them.
                    let own = figures.filter(|_| neighbour == Neighbour::None);
                    own.for_each(|(count, column)| recorder.add(row, column, count));
                    Ok(())
                }),
            });
            if neighbour != Neighbour::None {
                continue;
            }
            // Flushing is for the sake of grace periods that are waited for.
            let kind = if kind == Kind::SeizeFlushed { Kind::Seize } else { kind };
            jobs.push(Job {
                what: format!("updates, {}, {}", reader_label(n), kind.name()),
                weight: 0.25,
                run: Box::new(move |length, recorder| {
                    let times = updates(kind, n, length, options)?;
                    recorder.add_samples(row, UPDATES, &times);
                    Ok(())
                }),
            });
        }
    }
    let mut notes = vec![
        "time from unlinking a node to being allowed to free it. crossbeam, sdd, seize, haphazard: until it is freed. rwlock: until the lock is held".into(),
        "update: replacing a node and handing the old one over, without waiting; rwlock: with the lock, which readers hold".into(),
        "ratios are to the best peer that has grace periods: haphazard and the locks are shown beside them".into(),
        "mean, p50, p99, max and samples of all rounds together; below them the smallest and largest of the rounds".into(),
        format!("samples: grace periods timed; no p99 of fewer than {FEWEST}, of updates neither"),
        "interrupts, waits: per grace period, CPUs that were interrupted to call a function (for whomever), and times that the writer slept".into(),
    ];
    notes.extend(lacking.map(|why| format!("left out: {why}")));
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

fn columns() -> Vec<Column> {
    let part = |what: &'static str, shown: Shown, unit| {
        shown.iter().map(move |&(_, statistic)| {
            let unit = if statistic == Statistic::Samples { Unit::Count } else { unit };
            column(format!("{what}{}", statistic.title()), unit)
        })
    };
    let periods = part("", PERIODS, Unit::Milliseconds);
    let updates = part("update, ", UPDATES, Unit::Microseconds);
    let counts = ["interrupts", "waits"].map(|what| column(what, Unit::Count));
    periods.chain(updates).chain(counts).collect()
}

/// The first of the columns of interrupts and waits.
const COUNTS: usize = PERIODS.len() + UPDATES.len();

/// The writer rests this long between two grace periods, or two bursts of updates.
const REST: Duration = Duration::from_millis(1);

/// Grace periods of one sample, in nanoseconds, at least one; and per grace period interrupts and
/// waits.
fn periods(
    kind: Kind,
    readers: usize,
    length: Duration,
    options: &Options,
) -> Result<(Vec<f64>, [f64; 2])> {
    let (mut waits, mut interrupts) = (0, None);
    let times = sample(kind, readers, length, options, |writer, key, times| {
        interrupts.get_or_insert_with(machine::calls);
        let before = machine::sleeps();
        times.push(writer.replace_and_wait(key())?.as_nanos() as f64);
        waits += machine::sleeps() - before;
        Ok(())
    })?;
    let interrupts = machine::calls() - interrupts.unwrap_or_default();
    let counts = [interrupts, waits].map(|count| count as f64 / times.len() as f64);
    Ok((times, counts))
}

/// Durations of updates of one sample, in nanoseconds; at least a burst.
fn updates(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<Vec<f64>> {
    /// A writer that finds the CPUs taken gets one rarely: enough updates each time for a p99.
    const BURST: usize = 8;
    sample(kind, readers, length, options, |writer, key, times| {
        for _ in 0..BURST {
            let key = key();
            let start = clock::now();
            writer.replace(key);
            times.push((clock::now() - start) as f64);
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
    mut once: impl FnMut(&mut dyn Writer, &mut dyn FnMut() -> u64, &mut Vec<f64>) -> Result<()>,
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
    Ok(readers::run(kind, &table, readers, Work::Lookups, body)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statistic_is_in_its_column() {
        let mut recorder = Recorder::new(columns());
        let row = recorder.row("", "a peer", Class::Peer);
        recorder.add_samples(row, PERIODS, &[1e6, 1e6, 4e6]);
        recorder.add_samples(row, UPDATES, &[1e3; 100]);
        recorder.add(row, COUNTS, 4.0);
        let (columns, rows) = recorder.finish();
        let figures = columns.iter().zip(&rows[0].figures);
        let found: Vec<_> =
            figures.map(|(c, f)| (c.title.as_str(), f.as_ref().map(|f| f.value))).collect();
        let expected = [
            ("mean", Some(2.0)),
            ("p50", Some(1.0)),
            ("p99", None),
            ("max", Some(4.0)),
            ("samples", Some(3.0)),
            ("update, mean", Some(1.0)),
            ("update, p50", Some(1.0)),
            ("update, p99", Some(1.0)),
            ("interrupts", Some(4.0)),
            ("waits", None),
        ];
        assert_eq!(found, expected);
    }
}
