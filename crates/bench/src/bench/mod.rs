// SPDX-License-Identifier: MIT OR Apache-2.0
//! The benchmarks, one per file, and what they share.

mod callbacks;
mod dcache;
mod flood;
mod grace;
mod locks;
mod long;
mod map;
mod msg;
mod read;
mod semop;
mod shm;
mod sides;
mod txn;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::peer::{Reader, Writer};
use crate::readers::{self, WARM_UP, Work};
use crate::result::{Column, Conditions, Outcome, Recorder, Unit, median};
use crate::schedule::{self, Job};
use crate::subject::{self, Kind};
use crate::table::{Table, next_seed};
use crate::{clock, machine};
use std::time::{Duration, Instant};

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    Read,
    Grace,
    Flood,
    Long,
    Map,
    Dcache,
    Callbacks,
    Locks,
    Semop,
    Msg,
    Shm,
    Txn,
}

impl Bench {
    /// All that a user may name: those of `bench all`, and those that measure other things than the
    /// runtime.
    pub const NAMED: [Bench; 12] = [
        Bench::Read,
        Bench::Grace,
        Bench::Flood,
        Bench::Long,
        Bench::Callbacks,
        Bench::Map,
        Bench::Dcache,
        Bench::Locks,
        Bench::Semop,
        Bench::Msg,
        Bench::Shm,
        Bench::Txn,
    ];

    /// All that measure the runtime, in the order of `bench all`.
    pub const ALL: [Bench; 7] = [
        Bench::Read,
        Bench::Grace,
        Bench::Flood,
        Bench::Long,
        Bench::Callbacks,
        Bench::Map,
        Bench::Dcache,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Bench::Read => "read",
            Bench::Grace => "grace",
            Bench::Flood => "flood",
            Bench::Long => "long",
            Bench::Map => "map",
            Bench::Dcache => "dcache",
            Bench::Callbacks => "callbacks",
            Bench::Locks => "locks",
            Bench::Semop => "semop",
            Bench::Msg => "msg",
            Bench::Shm => "shm",
            Bench::Txn => "txn",
        }
    }

    /// The benchmark's subject, in a sentence.
    pub fn title(self) -> &'static str {
        match self {
            Bench::Read => "what reading costs",
            Bench::Grace => {
                "how long a grace period takes while readers are preempted in their sections"
            }
            Bench::Flood => "a flood of 1 KiB updates",
            Bench::Long => "traversals of a long list, and scans of a large map, beside updates",
            Bench::Map => "maps, hashed and ordered",
            Bench::Dcache => "a directory-entry cache, per grace-period engine",
            Bench::Callbacks => "callbacks registered and run",
            Bench::Locks => "locks, with more threads than CPUs and without",
            Bench::Semop => "System V semaphores, against the kernel's",
            Bench::Msg => "System V message queues, against the kernel's",
            Bench::Shm => "System V shared memory, against the kernel's",
            Bench::Txn => {
                "a database's transactions over System V IPC, against the kernel's: table 4 of the System V IPC paper"
            }
        }
    }

    /// Numbers of threads when the user names none: readers, or in `callbacks` registering threads.
    pub fn default_readers(self) -> &'static [usize] {
        match self {
            Bench::Read | Bench::Grace | Bench::Callbacks => &[1, 4, 16, 64],
            Bench::Map => &[1, 16],
            Bench::Flood => &[16],
            Bench::Long => &[1, 4],
            Bench::Dcache => &[4],
            Bench::Locks => &[2, 32],
            Bench::Semop => &[1, 2, 8, 32],
            Bench::Msg => &[2],
            Bench::Shm => &[1],
            Bench::Txn => &[1, 8, 32],
        }
    }

    /// The peers when the user names none.
    pub fn families(self) -> &'static [&'static str] {
        match self {
            Bench::Locks => &locks::FAMILIES,
            Bench::Semop | Bench::Msg | Bench::Shm | Bench::Txn => &["kernel"],
            _ => &subject::FAMILIES,
        }
    }

    /// Rounds when the user does not say. Grace periods of a hundred milliseconds need longer
    /// samples, and all rounds' are put together anyway.
    pub fn default_rounds(self) -> usize {
        if self == Bench::Grace { 2 } else { 5 }
    }

    /// Its part of the time where all run, relative to the others': those whose single operations
    /// take long need more of it.
    pub fn share(self) -> f64 {
        match self {
            Bench::Grace => 3.0,
            Bench::Dcache => 0.5,
            _ => 1.0,
        }
    }
}

/// The least measured time of a run.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// A benchmark with its samples still to be taken.
struct Prepared<'a> {
    notes: Vec<String>,
    recorder: Recorder,
    jobs: Vec<Job<'a>>,
    /// Jobs that begin when all rounds of the others are over: some peers keep for the rest of the
    /// process what they made for each reader. (arc-swap's writers visit it all.)
    crowds: Vec<Job<'a>>,
}

/// Runs a benchmark. `progress` is told what runs, and which share is over.
///
/// # Errors
/// [`Error::Usage`] for options that make no sense, [`Error::Broken`] when a subject fails,
/// [`Error::Cancelled`].
pub fn run(bench: Bench, options: &Options, progress: &dyn Fn(&str, f64)) -> Result<Outcome> {
    check(options)?;
    let conditions = machine::conditions(options);
    let mut prepared = prepare(bench, options)?;
    if bench.families() == subject::FAMILIES
        && !subject::URCU
        && options.against.iter().any(|a| a == "urcu")
    {
        prepared.notes.push(subject::NO_URCU.into());
    }
    if cfg!(debug_assertions) {
        prepared.notes.push(
            "this command was built without optimization: the figures of the Rust subjects say nothing (build with --release)".into(),
        );
    }
    let parts = [prepared.jobs, prepared.crowds];
    schedule::rounds(parts, options, &mut prepared.recorder, progress)?;
    Ok(finish(bench, prepared.notes, prepared.recorder, conditions))
}

fn prepare(bench: Bench, options: &Options) -> Result<Prepared<'_>> {
    match bench {
        _ if bench.families() == ["kernel"] && options.against.iter().any(|p| p != "kernel") => {
            let what = bench.name();
            Err(Error::Usage(format!("--against: {what} runs beside `kernel`, and nothing else")))
        }
        Bench::Read => read::prepare(options),
        Bench::Grace => grace::prepare(options),
        Bench::Flood => flood::prepare(options),
        Bench::Long => long::prepare(options),
        Bench::Map => map::prepare(options),
        Bench::Dcache => dcache::prepare(options),
        Bench::Callbacks => callbacks::prepare(options),
        Bench::Locks => locks::prepare(options),
        Bench::Semop => semop::prepare(options),
        Bench::Msg => msg::prepare(options),
        Bench::Shm => shm::prepare(options),
        Bench::Txn => txn::prepare(options),
    }
}

fn finish(bench: Bench, notes: Vec<String>, recorder: Recorder, conditions: Conditions) -> Outcome {
    let (columns, rows) = recorder.finish();
    let (bench, title) = (bench.name().into(), bench.title().into());
    Outcome { bench, title, conditions, columns, rows, notes }
}

/// A benchmark whose figures are made up: rounds by group, subject and column.
#[cfg(test)]
pub fn invented(
    bench: Bench,
    options: &Options,
    figure: &dyn Fn(&str, &str, &str) -> Vec<f64>,
) -> Outcome {
    let Prepared { notes, mut recorder, .. } = prepare(bench, options).unwrap();
    recorder.fill(figure);
    finish(bench, notes, recorder, machine::conditions(options))
}

fn check(options: &Options) -> Result<()> {
    let usage = |what: &str| Err(Error::Usage(what.into()));
    check_length(options.length)?;
    if options.readers.is_empty() || options.readers.iter().any(|&n| n == 0 || n > 512) {
        return usage("--readers: numbers from 1 to 512");
    }
    if let Some(n) = twice(&options.readers) {
        return usage(&format!("--readers: {n} is named twice"));
    }
    if options.rounds == 0 || options.rounds > 1000 {
        return usage("--rounds: from 1 to 1000");
    }
    Ok(())
}

/// A number that is in `numbers` twice.
fn twice(numbers: &[usize]) -> Option<usize> {
    (0..).zip(numbers).find(|(at, n)| numbers[..*at].contains(n)).map(|(_, n)| *n)
}

pub fn check_length(length: Duration) -> Result<()> {
    if length < SHORTEST || length > Duration::from_secs(86_400) {
        return Err(Error::Usage("--seconds: from 0.1 to 86400".into()));
    }
    Ok(())
}

fn column(title: impl Into<String>, unit: Unit) -> Column {
    Column { title: title.into(), unit, more_is_better: false }
}

fn reader_label(n: usize) -> String {
    if n == 1 { "1 reader".into() } else { format!("{n} readers") }
}

fn thread_label(n: usize) -> String {
    if n == 1 { "1 thread".into() } else { format!("{n} threads") }
}

fn process_label(n: usize) -> String {
    if n == 1 { "1 process".into() } else { format!("{n} processes") }
}

/// Rows for subjects, and their indices.
fn rows(recorder: &mut Recorder, kinds: &[Kind]) -> Vec<(Kind, usize)> {
    kinds.iter().map(|&k| (k, recorder.row("", k.name(), k.class()))).collect()
}

/// Nanoseconds per operation of a thread that is alone: `operation` does as many as it is told.
/// Batches take some 100 us; the median of all is taken, so that those in which somebody else had
/// the CPU do not count.
fn alone(length: Duration, mut operation: impl FnMut(u64) -> u64) -> Result<f64> {
    const BATCH: u64 = 100_000;
    let mut n = 64;
    let mut bad = 0;
    // Warms up, too.
    while {
        let start = clock::now();
        bad += operation(n);
        clock::now() - start < BATCH / 2
    } {
        n *= 2;
    }
    let end = Instant::now() + length;
    let mut batches = vec![];
    loop {
        let start = clock::now();
        bad += operation(n);
        batches.push((clock::now() - start) as f64 / n as f64);
        if Instant::now() >= end {
            break;
        }
    }
    if bad != 0 {
        return Err(Error::Broken {
            subject: "a reader".into(),
            what: format!("{bad} reads were wrong"),
        });
    }
    Ok(median(&batches))
}

/// [`alone`] for an operation of a subject's reader, which has run for [`WARM_UP`] before: a map
/// that was just filled may still be resizing itself in the background.
fn reader_alone(
    kind: Kind,
    table: &Table,
    length: Duration,
    mut operation: impl FnMut(&mut dyn Reader, u64) -> u64,
) -> Result<f64> {
    let peer = crate::peer::make(kind);
    let mut reader = peer.reader(table);
    let end = Instant::now() + WARM_UP;
    let mut bad = 0;
    while Instant::now() < end {
        bad += operation(&mut *reader, readers::BATCH);
    }
    // An earlier error counts as well.
    alone(length, |n| operation(&mut *reader, n) + std::mem::take(&mut bad))
}

/// Replaces a random key each millisecond.
fn replace_at_times(
    writer: &mut dyn Writer,
    table: &Table,
    length: Duration,
    options: &Options,
) -> Result<()> {
    let end = Instant::now() + length;
    let mut seed = 12345;
    while Instant::now() < end {
        options.check()?;
        seed = next_seed(seed);
        writer.replace(table.key(seed));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Replaces random keys as fast as it can: the peak of the garbage, the updates, and the seconds.
fn replace_always(
    writer: &mut dyn Writer,
    table: &Table,
    key: impl Fn(u64) -> u64,
    length: Duration,
    options: &Options,
) -> Result<(u64, u64, f64)> {
    let start = Instant::now();
    let (mut seed, mut updates, mut peak) = (12345, 0, 0);
    loop {
        seed = next_seed(seed);
        writer.replace(key(seed));
        updates += 1;
        peak = peak.max(table.ledger().garbage());
        if updates % 16 == 0 {
            options.check()?;
            let elapsed = start.elapsed();
            if elapsed >= length {
                return Ok((peak, updates, elapsed.as_secs_f64()));
            }
        }
    }
}

/// Readers at work beside a writer, a column for each number of them.
struct Crowds {
    /// Before the number, in the column's title.
    title: &'static str,
    /// The first of the columns.
    first: usize,
    work: Work,
    table: fn() -> Table,
}

impl Crowds {
    fn columns(&self, options: &Options) -> impl Iterator<Item = Column> {
        let title = |&n| format!("{}, {}", self.title, reader_label(n));
        options.readers.iter().map(move |n| column(title(n), Unit::Nanoseconds))
    }

    /// A job per number and subject.
    fn jobs<'a>(
        &self,
        options: &'a Options,
        rows: impl Iterator<Item = (Kind, usize)> + Clone,
    ) -> Vec<Job<'a>> {
        let &Crowds { first, work, table, .. } = self;
        let numbers = options.readers.iter().enumerate();
        let all = numbers.flat_map(|(i, &n)| rows.clone().map(move |row| (first + i, n, row)));
        let job = |(column, n, (kind, row)): (usize, usize, (Kind, usize))| {
            Job::figure(
                format!("{}, {}", reader_label(n), kind.name()),
                4.0,
                (row, column),
                move |length| crowded(kind, &table(), n, work, length, options),
            )
        };
        all.map(job).collect()
    }
}

/// CPU time per operation of `readers` threads beside a writer that replaces 1000 nodes per second
/// at most.
fn crowded(
    kind: Kind,
    table: &Table,
    readers: usize,
    work: Work,
    length: Duration,
    options: &Options,
) -> Result<f64> {
    let ((), totals) = readers::run(kind, table, readers, work, |writer| {
        replace_at_times(writer, table, length, options)
    })?;
    Ok(totals.each())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_alone_warms_up_and_is_checked_meanwhile() {
        let begun = Instant::now();
        let (table, mut calls) = (Table::cell(), 0);
        let time = reader_alone(Kind::Floor, &table, Duration::ZERO, |reader, n| {
            calls += 1;
            reader.gets(n) + u64::from(calls == 1)
        });
        assert!(begun.elapsed() >= WARM_UP);
        assert!(matches!(time, Err(Error::Broken { .. })), "{time:?}");
    }
}
