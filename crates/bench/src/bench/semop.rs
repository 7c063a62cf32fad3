// SPDX-License-Identifier: MIT OR Apache-2.0
//! System V semaphores, the kernel's and ours: table 5 of the System V IPC paper (semopbench).
//!
//! A pair is an operation that raises a semaphore and one that takes it back. One process alone;
//! processes that each have a set of their own; processes that share one set as a mutex and count
//! inside, which is checked; two processes that wake each other in turns, on one CPU and on two.

use super::sides::{self, Measure, Sample};
use super::{Prepared, alone, column, process_label};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::processes::{self, Shared};
use crate::result::{Column, Unit};
use crate::sysv::{Object, Sysv};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

pub fn prepare<'a>(options: &'a Options) -> Result<Prepared<'a>> {
    let rate =
        |title: String| Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) };
    let mut measures = vec![];
    let mut measure = |column, sample: Box<Sample<'a>>| measures.push(Measure { column, sample });
    for (title, flags) in [("pair", 0), ("pair, SEM_UNDO", libc::SEM_UNDO)] {
        let sample = move |side, length| pairs_alone(side, flags, length);
        measure(column(title, Unit::Nanoseconds), Box::new(sample));
    }
    for &n in &options.readers {
        let sample = move |side, length| own_sets(side, n, length, options);
        measure(rate(format!("own sets, {}", process_label(n))), Box::new(sample));
    }
    for &n in &options.readers {
        let sample = move |side, length| mutex(side, n, length, options);
        measure(rate(format!("one mutex, {}", process_label(n))), Box::new(sample));
    }
    let cpus = processes::cpus();
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    for (title, pair) in
        [("round trip, one CPU", [first, first]), ("round trip, two CPUs", [first, last])]
    {
        if pair == [first, first] || first != last {
            let sample = move |side, length| round_trips(side, pair, length, options);
            measure(column(title, Unit::Microseconds), Box::new(sample));
        }
    }
    let mut prepared = sides::prepare(measures)?;
    let what = "K/s counts pairs of all processes together; a round trip is two wake-ups";
    prepared.notes.insert(0, what.into());
    Ok(prepared)
}

fn pair(set: &Object, flags: i32) -> bool {
    set.op(0, 1, flags) && set.op(0, -1, flags)
}

fn pairs_alone(side: Sysv, flags: i32, length: Duration) -> Result<f64> {
    let set = side.set(1)?;
    alone(length, |n| (0..n).filter(|_| !pair(&set, flags)).count() as u64)
}

fn own_sets(side: Sysv, n: usize, length: Duration, options: &Options) -> Result<f64> {
    let sets = (0..n).map(|_| side.set(1)).collect::<Result<Vec<_>>>()?;
    let work = |i: usize, shared: &Shared| {
        while pair(&sets[i], libc::SEM_UNDO) {
            shared.counts[i].add(1);
        }
    };
    Ok(processes::rate(n, length, options, &work, &|_| Ok(()))? / 1e3)
}

fn mutex(side: Sysv, n: usize, length: Duration, options: &Options) -> Result<f64> {
    let set = side.set(1)?;
    if !set.op(0, 1, 0) {
        return Err(Error::Broken { subject: side.name().into(), what: "semop".into() });
    }
    let work = |i: usize, shared: &Shared| {
        while set.op(0, -1, libc::SEM_UNDO) {
            // In two steps: somebody else in here would lose one.
            let guarded = shared.guarded.load(Relaxed);
            shared.counts[i].add(1);
            shared.guarded.store(guarded + 1, Relaxed);
            if !set.op(0, 1, libc::SEM_UNDO) {
                return;
            }
        }
    };
    // A process may have been killed between the two counts.
    let check = |shared: &Shared| {
        if shared.sum() - shared.guarded.load(SeqCst) <= n as u64 {
            return Ok(());
        }
        let what = "two processes were in the critical section at a time".into();
        Err(Error::Broken { subject: side.name().into(), what })
    };
    Ok(processes::rate(n, length, options, &work, &check)? / 1e3)
}

fn round_trips(side: Sysv, cpus: [usize; 2], length: Duration, options: &Options) -> Result<f64> {
    let set = side.set(2)?;
    let work = |i: usize, shared: &Shared| {
        processes::bind(cpus[i]);
        let (mine, others) = (i as u16, 1 - i as u16);
        if i == 0 && !set.op(others, 1, 0) {
            return;
        }
        while set.op(mine, -1, 0) && set.op(others, 1, 0) {
            if i == 0 {
                shared.counts[0].add(1);
            }
        }
    };
    let rate = processes::rate(2, length, options, &work, &|_| Ok(()))?;
    Ok(1e6 / rate)
}
