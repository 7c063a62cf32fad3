// SPDX-License-Identifier: MIT OR Apache-2.0
//! System V semaphores, the kernel's and ours: table 5 of the System V IPC paper (semopbench).
//!
//! A pair is an operation that raises a semaphore and one that takes it back. One process alone;
//! processes that each have a set of their own; processes that share one set as a mutex and count
//! inside, which is checked; two processes that wake each other in turns, on one CPU and on two.

use super::{Prepared, alone, column};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::processes::{self, Shared};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::sysv::{Object, Stage, Sysv};
use std::rc::Rc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let stage = Rc::new(Stage::new()?);
    let numbers: Vec<usize> = options.readers.clone();
    let rate =
        |title: String| Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) };
    let several = |n: usize| if n == 1 { "1 process".into() } else { format!("{n} processes") };
    let mut columns =
        vec![column("pair", Unit::Nanoseconds), column("pair, SEM_UNDO", Unit::Nanoseconds)];
    columns.extend(numbers.iter().map(|&n| rate(format!("own sets, {}", several(n)))));
    columns.extend(numbers.iter().map(|&n| rate(format!("one mutex, {}", several(n)))));
    columns.push(column("round trip, one CPU", Unit::Microseconds));
    let cpus = processes::cpus();
    let far = cpus.len() > 1;
    if far {
        columns.push(column("round trip, two CPUs", Unit::Microseconds));
    }
    let mut recorder = Recorder::new(columns);
    let mut jobs = vec![];
    let (sides, note) = stage.sides();
    for (side, class) in sides {
        let row = recorder.row("", side.name(), class);
        let stage = &stage;
        let mut job =
            |what: String, weight, mut run: Box<dyn FnMut(Duration) -> Result<f64>>, column| {
                let stage = stage.clone();
                jobs.push(Job {
                    what: format!("{what}, {}", side.name()),
                    weight,
                    run: Box::new(move |length, recorder| {
                        let _stage = &stage;
                        recorder.add(row, column, run(length)?);
                        Ok(())
                    }),
                });
            };
        for (i, flags) in [0, libc::SEM_UNDO].into_iter().enumerate() {
            job("pairs".into(), 1.0, Box::new(move |length| pairs_alone(side, flags, length)), i);
        }
        for (i, &n) in numbers.iter().enumerate() {
            let own = options.clone();
            let run = move |length| own_sets(side, n, length, &own);
            job(format!("own sets, {}", several(n)), 1.0, Box::new(run), 2 + i);
        }
        let first = 2 + numbers.len();
        for (i, &n) in numbers.iter().enumerate() {
            let own = options.clone();
            let run = move |length| mutex(side, n, length, &own);
            job(format!("one mutex, {}", several(n)), 1.0, Box::new(run), first + i);
        }
        let first = first + numbers.len();
        for (i, pair) in
            [[cpus[0], cpus[0]], [cpus[0], cpus[cpus.len() - 1]]].into_iter().enumerate()
        {
            if i == 0 || far {
                let own = options.clone();
                let run = move |length| round_trips(side, pair, length, &own);
                job("round trips".into(), 1.0, Box::new(run), first + i);
            }
        }
    }
    let mut notes =
        vec!["K/s counts pairs of all processes together; a round trip is two wake-ups".into()];
    notes.extend(note);
    Ok(Prepared { notes, recorder, jobs })
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
            shared.counts[i].0.fetch_add(1, Relaxed);
        }
    };
    Ok(processes::rate(n, length, options, &work, &|_| true)? / 1e3)
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
            shared.counts[i].0.fetch_add(1, Relaxed);
            shared.guarded.store(guarded + 1, Relaxed);
            if !set.op(0, 1, libc::SEM_UNDO) {
                return;
            }
        }
    };
    // One may have been killed between the two counts.
    let check = |shared: &Shared| {
        let sum: u64 = shared.counts.iter().map(|count| count.0.load(SeqCst)).sum();
        sum - shared.guarded.load(SeqCst) <= n as u64
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
                shared.counts[0].0.fetch_add(1, Relaxed);
            }
        }
    };
    let rate = processes::rate(2, length, options, &work, &|_| true)?;
    Ok(1e6 / rate)
}
