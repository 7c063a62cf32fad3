// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps from key to value, hashed or ordered: whole structures, as a program would use them.
//!
//! - **lookup**: a random one of 4096 keys; one thread alone, then several beside a writer that
//!   replaces 1000 values a second (CPU time per lookup).
//! - **replace**: one thread alone gives a random key a new value; then several do, and what they
//!   do in all is counted.
//! - **insert and remove**: one thread alone, a key that is not among the 4096; both together.
//! - **growing**: one thread fills a new map with 65,536 keys; time per key, all growth included.
//!
//! All hash maps have one hash function.

use super::{Crowds, Prepared, alone, column, reader_alone, thread_label};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Kind, choose};
use crate::table::{KEYS, Node, Table, next_seed};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Keys that a growing map gets.
const MORE: u64 = 1 << 16;

/// A sample's figure.
type Measure = fn(Kind, Duration, &Options) -> Result<f64>;

/// Measures with a fixed number of threads.
const MEASURES: [(&str, Measure); 4] = [
    ("lookup", lookup),
    ("replace", replace),
    ("insert and remove", insert_and_remove),
    ("growing, per key", fill),
];

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut columns = MEASURES.map(|(title, _)| column(title, Unit::Nanoseconds)).to_vec();
    let crowds = Crowds { title: "lookup", first: columns.len(), work: Work::Lookups, table };
    columns.extend(crowds.columns(options));
    let together = columns.len();
    columns.extend(options.readers.iter().map(|&n| Column {
        more_is_better: true,
        ..column(format!("replace, {}", thread_label(n)), Unit::MegaPerSecond)
    }));
    let mut recorder = Recorder::new(columns);
    let mut rows = vec![];
    for (group, kinds) in [("maps", &Kind::MAPS[..]), ("ordered maps", &Kind::ORDERED)] {
        for kind in choose(kinds, &options.against)? {
            rows.push((kind, recorder.row(group, kind.name(), kind.class())));
        }
    }
    let mut jobs = vec![];
    for (i, (title, measure)) in MEASURES.into_iter().enumerate() {
        for &(kind, row) in &rows {
            let what = format!("{title}, {}", kind.name());
            jobs.push(Job::figure(what, 1.0, (row, i), move |length| {
                measure(kind, length, options)
            }));
        }
    }
    let mut crowds = crowds.jobs(options, rows.iter().copied());
    for (column, &n) in (together..).zip(&options.readers) {
        for &(kind, row) in &rows {
            let what = format!("replace, {}, {}", thread_label(n), kind.name());
            crowds.push(Job::figure(what, 2.0, (row, column), move |length| {
                replace_together(kind, n, length, options)
            }));
        }
    }
    let notes = vec![
        format!(
            "{KEYS} keys and values of 64 bits, one hash function for all hash maps; with readers: CPU time per lookup beside a writer that replaces 1000 values/s"
        ),
        format!("growing: from nothing to {MORE} keys"),
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
