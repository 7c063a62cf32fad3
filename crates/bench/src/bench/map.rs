// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps from key to value, hashed or ordered: whole structures, as a program would use them.
//!
//! - **lookup**: a random one of 4096 keys; one thread alone, then several beside a writer that
//!   replaces 1000 values a second (CPU time per lookup).
//! - **replace**: one thread alone gives a random key a new value; then several do, and what they
//!   do in all is counted.
//! - **insert and remove**: one thread alone, a key that is not among the 4096; both together.
//! - **growing**: one thread fills a new map with 65,536 keys; time per key, all growth included.
//! - **lookup, growing**: one thread's lookups of the 4096 keys while another does that, from 4096
//!   keys on (CPU time per lookup).
//!
//! All hash maps have one hash function. The row of `read`'s lookup by liburcu's qsbr, the cheapest
//! read side there is, in a table of the benchmark's own (1024 chains of four) stands beside them:
//! it is a table without a user's types, growth or several writers.

use super::{Crowds, Prepared, alone, column, reader_alone, thread_label};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Flavor, Kind, choose};
use crate::table::{KEYS, Node, Table, next_seed};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Keys that a growing map gets.
const MORE: u64 = 1 << 16;

/// A sample's figure.
type Measure = fn(Kind, Duration, &Options) -> Result<f64>;

/// Measures with a fixed number of threads; the last three of maps only.
const MEASURES: [(&str, Measure); 5] = [
    ("lookup", lookup),
    ("replace", replace),
    ("insert and remove", insert_and_remove),
    ("growing, per key", fill),
    ("lookup, growing", lookup_growing),
];

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut columns = MEASURES.map(|(title, _)| column(title, Unit::Nanoseconds)).to_vec();
    let crowds =
        Crowds { title: "lookup", first: columns.len(), work: Work::Lookups, table, parts: 1 };
    columns.extend(crowds.columns(options));
    let together = columns.len();
    columns.extend(options.readers.iter().map(|&n| Column {
        more_is_better: true,
        ..column(format!("replace, {}", thread_label(n)), Unit::MegaPerSecond)
    }));
    let mut recorder = Recorder::new(columns);
    let mut rows = vec![];
    for kind in choose(&Kind::MAPS, &options.against)? {
        rows.push((kind, MEASURES.len(), recorder.row("maps", kind.name(), kind.class())));
    }
    for kind in choose(&[Kind::Urcu(Flavor::Qsbr)], &options.against)? {
        rows.push((kind, 1, recorder.row("maps", "urcu qsbr, own chains", Class::Other)));
    }
    for kind in choose(&Kind::ORDERED, &options.against)? {
        rows.push((kind, MEASURES.len(), recorder.row("ordered maps", kind.name(), kind.class())));
    }
    let mut jobs = vec![];
    for (i, (title, measure)) in MEASURES.into_iter().enumerate() {
        for &(kind, _, row) in rows.iter().filter(|(_, measures, _)| i < *measures) {
            let what = format!("{title}, {}", kind.name());
            jobs.push(Job::figure(what, 1.0, (row, i), move |length| {
                measure(kind, length, options)
            }));
        }
    }
    let mut crowds = crowds.jobs(options, rows.iter().map(|&(kind, _, row)| (kind, row)));
    let several: Vec<_> = rows.iter().filter(|row| row.1 == MEASURES.len()).copied().collect();
    for (column, &n) in (together..).zip(&options.readers) {
        for &(kind, _, row) in &several {
            let what = format!("replace, {}, {}", thread_label(n), kind.name());
            crowds.push(Job::figure(what, 2.0, (row, column), move |length| {
                replace_together(kind, n, length, options)
            }));
        }
    }
    let notes = vec![
        format!("{KEYS} keys and values of 64 bits, one hash function for all hash maps; with readers: CPU time per lookup beside a writer that replaces 1000 values/s"),
        format!("growing: from nothing to {MORE} keys; lookup, growing: by one thread, while another adds {MORE} keys to the {KEYS}"),
        "urcu qsbr, own chains: `bench read`'s lookup in a fixed table of chains, for comparison; no map".into(),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds })
}

fn table() -> Table {
    Table::hash(size_of::<Node>())
}

fn lookup(kind: Kind, length: Duration, _: &Options) -> Result<f64> {
    let seed = Cell::new(1);
    reader_alone(kind, &table(), length, |reader, n| {
        let mut s = seed.get();
        let bad = reader.lookups(&mut s, n);
        seed.set(s);
        bad
    })
}

fn replace(kind: Kind, length: Duration, _: &Options) -> Result<f64> {
    let table = table();
    let mut seed = 1;
    let (time, _) = readers::run(kind, &table, 0, Work::Lookups, |writer| {
        alone(length, |n| {
            for _ in 0..n {
                seed = next_seed(seed);
                writer.replace(table.key(seed));
            }
            0
        })
    })?;
    Ok(time)
}

/// Replacements of all threads in a microsecond.
fn replace_together(
    kind: Kind,
    threads: usize,
    length: Duration,
    options: &Options,
) -> Result<f64> {
    let work = Work::Replacements;
    let (time, totals) = readers::run(kind, &table(), threads, work, |_| {
        let start = Instant::now();
        while start.elapsed() < length {
            options.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(start.elapsed())
    })?;
    Ok(totals.operations as f64 / time.as_nanos() as f64 * 1e3)
}

fn insert_and_remove(kind: Kind, length: Duration, _: &Options) -> Result<f64> {
    let (time, _) = readers::run(kind, &table(), 0, Work::Lookups, |writer| {
        alone(length, |n| {
            (KEYS..KEYS + n).map(|key| !(writer.insert(key) && writer.remove(key)) as u64).sum()
        })
    })?;
    Ok(time)
}

/// Adds `MORE` keys; the time per key.
fn add(writer: &mut dyn crate::peer::Writer) -> Result<f64> {
    let start = Instant::now();
    let mut bad = 0;
    for key in KEYS..KEYS + MORE {
        bad += !writer.insert(key) as u64;
    }
    let time = start.elapsed();
    if bad != 0 {
        let what = format!("{bad} of {MORE} new keys were there");
        return Err(Error::Broken { subject: String::new(), what });
    }
    Ok(time.as_nanos() as f64 / MORE as f64)
}

/// Median of as many fillings as fit, at least one.
fn fill(kind: Kind, length: Duration, options: &Options) -> Result<f64> {
    let end = Instant::now() + length;
    let mut times = vec![];
    loop {
        options.check()?;
        let (time, _) = readers::run(kind, &Table::cell(), 0, Work::Lookups, add)?;
        times.push(time);
        if Instant::now() >= end {
            return Ok(crate::result::median(&times));
        }
    }
}

/// As [`fill`], but the readers' time.
fn lookup_growing(kind: Kind, length: Duration, options: &Options) -> Result<f64> {
    let end = Instant::now() + length;
    let mut times = vec![];
    loop {
        options.check()?;
        let (_, totals) = readers::run(kind, &table(), 1, Work::Lookups, add)?;
        times.push(totals.each());
        if Instant::now() >= end {
            return Ok(crate::result::median(&times));
        }
    }
}
