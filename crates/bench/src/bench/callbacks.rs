// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks per second, registered and run ([IPC], section on callback lists), and how long one
//! takes.
//!
//! A fixed number of callbacks, divided among threads that start together, is registered as fast as
//! they can; the clock stops when all have run. Heads are allocated beforehand and a callback
//! writes one word into its own, so it is the lists, the grace periods and the callback threads
//! that are measured. There are no readers but the registering threads themselves.
//!
//! The latency is that of one callback at a time, registered each two milliseconds or so, beside as
//! many threads that keep the CPUs busy as there are others in the group: from before the call that
//! registers it to the end of the callback, which frees a node. Mean and p99 are of all rounds'
//! samples together, and **samples** is their number. There is no p99 of fewer than [`FEWEST`]: of
//! a library whose callbacks take ten milliseconds a short run has a few dozen, with 64 threads one
//! or two of each round.

use super::{Prepared, column, thread_label};
use crate::clock;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::result::{Column, FEWEST, Recorder, Shown, Statistic, Unit, median};
use crate::schedule::Job;
use crate::subject::Class;
#[cfg(urcu)]
use crate::subject::Flavor;
use crate::table::{Node, Table, next_seed};
use crate::threads::{self, Gate, Last};
use reprieve::{Domain, Head};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Callbacks per run.
const CALLBACKS: usize = 1 << 20;

/// The library that runs callbacks.
#[derive(Clone, Copy)]
enum Lists {
    Reprieve {
        single: bool,
    },
    #[cfg(urcu)]
    Urcu {
        flavor: Flavor,
        per_cpu: bool,
    },
}

const RATE: usize = 0;
const LATENCY: Shown = &[(1, Statistic::Mean), (2, Statistic::P99), (3, Statistic::Samples)];

fn columns() -> Vec<Column> {
    vec![
        Column { more_is_better: true, ..column("registered and run", Unit::KiloPerSecond) },
        column("latency, mean", Unit::Milliseconds),
        column("latency, p99", Unit::Milliseconds),
        column("samples", Unit::Count),
    ]
}

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut recorder = Recorder::new(columns());
    #[cfg_attr(not(urcu), allow(unused_mut))]
    let mut subjects = vec![
        ("per-CPU lists", Class::Reprieve, Lists::Reprieve { single: false }),
        ("one global list", Class::Reprieve, Lists::Reprieve { single: true }),
    ];
    crate::subject::choose(&[], &options.against)?;
    #[cfg(urcu)]
    if options.against.iter().any(|a| a == "urcu") {
        for (name, flavor, per_cpu) in [
            ("urcu memb, per-CPU", Flavor::Memb, true),
            ("urcu memb, one thread", Flavor::Memb, false),
            ("urcu mb, per-CPU", Flavor::Mb, true),
            ("urcu qsbr, per-CPU", Flavor::Qsbr, true),
        ] {
            subjects.push((name, Class::Peer, Lists::Urcu { flavor, per_cpu }));
        }
    }
    let mut jobs = vec![];
    for &n in &options.readers {
        for &(name, class, lists) in &subjects {
            let group = thread_label(n);
            let row = recorder.row(&group, name, class);
            jobs.push(Job {
                what: format!("{group}, {name}"),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let rate = sample(lists, n, length / 2, options)?;
                    recorder.add(row, RATE, rate / 1e3);
                    let times = latencies(lists, n, length / 2, options)?;
                    recorder.add_samples(row, LATENCY, &times);
                    Ok(())
                }),
            });
        }
    }
    let notes = vec![
        format!("{CALLBACKS} callbacks per run, from the first registration to the end of the last callback"),
        "liburcu's lists have no bound; the default cap of Reprieve's (64 MiB, 1,048,576 callbacks) is not reached here".into(),
        "latency: from registering one callback to its end, beside as many busy threads as there are others in the group".into(),
        format!("latency and samples (callbacks timed) of all rounds together; no p99 of fewer than {FEWEST}"),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

/// Median rate of as many runs as fit, at least one.
fn sample(lists: Lists, threads: usize, length: Duration, options: &Options) -> Result<f64> {
    let end = Instant::now() + length;
    let mut rates = vec![];
    loop {
        options.check()?;
        let time = match lists {
            Lists::Reprieve { single } => reprieve_run(single, threads)?,
            #[cfg(urcu)]
            Lists::Urcu { flavor, per_cpu } => urcu_run(flavor, per_cpu, threads)?,
        };
        rates.push((CALLBACKS / threads * threads) as f64 / time.as_secs_f64());
        if Instant::now() >= end {
            return Ok(median(&rates));
        }
    }
}

/// Runs `register` on all threads at once, with their shares of the slots, then `barrier`. From the
/// first thread's start to the end. `register` waits at the gate first and returns when it came
/// through.
fn time<S: Send>(
    slots: &mut [Vec<S>],
    register: impl Fn(&mut [S], &Gate) -> Instant + Sync,
    barrier: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let (start_line, threads) = (Gate::default(), slots.len());
    let shares: Vec<_> = slots.iter_mut().map(Mutex::new).collect();
    let start = std::thread::scope(|scope| -> Result<Instant> {
        let (start_line, shares, register) = (&start_line, &shares, &register);
        let _go = Last(|| start_line.open(0));
        let register = move |number: usize| {
            let mut share = shares[number].lock().unwrap_or_else(|e| e.into_inner());
            register(&mut share, start_line)
        };
        let handles = threads::start(scope, threads, register)?;
        start_line.open(threads);
        let starts =
            handles.into_iter().map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        Ok(starts.min().unwrap_or_else(Instant::now))
    });
    // Also where a thread could not be started: the others have registered theirs.
    barrier()?;
    Ok(start?.elapsed())
}

fn check(bad: u64) -> Result<()> {
    if bad == 0 {
        return Ok(());
    }
    let what = format!("{bad} callbacks were not called exactly once");
    Err(Error::Broken { subject: "a callback list".into(), what })
}

#[repr(C)]
struct Slot {
    head: Head,
    done: u64,
}

// SAFETY: a head is plain memory until it is registered.
unsafe impl Send for Slot {}

unsafe extern "C" fn mark(head: *mut Head) {
    // SAFETY: the head of a slot, which is the callback's alone.
    unsafe { (*head.cast::<Slot>()).done += 1 };
}

fn reprieve_run(single: bool, threads: usize) -> Result<Duration> {
    let domain = Domain::builder().single_list(single).build()?;
    let slot = || Slot { head: Head::new(), done: 0 };
    let share = || std::iter::repeat_with(slot).take(CALLBACKS / threads).collect();
    let mut slots: Vec<Vec<Slot>> = std::iter::repeat_with(share).take(threads).collect();
    let time = time(
        &mut slots,
        |share, start| {
            start.pass();
            let began = Instant::now();
            for slot in share {
                let head = (&raw mut *slot).cast();
                // SAFETY: the head is free, and lives until `barrier` has returned.
                unsafe { domain.call_rcu(head, mark, size_of::<Slot>()) };
            }
            began
        },
        || Ok(domain.barrier()?),
    )?;
    check(slots.iter().flatten().filter(|s| s.done != 1).count() as u64)?;
    Ok(time)
}

#[cfg(urcu)]
fn urcu_run(flavor: Flavor, per_cpu: bool, threads: usize) -> Result<Duration> {
    let functions = flavor.functions();
    // SAFETY: no preconditions.
    let slot = unsafe { (functions.slot_size)() } as usize;
    let share = CALLBACKS / threads;
    let mut slots = vec![vec![0u64; share * slot.div_ceil(8)]; threads];
    // SAFETY: each thread is registered while it registers callbacks; slots live until `barrier`
    // has returned, and each share has room for its number of slots. The per-CPU threads are made
    // and freed while no callbacks wait.
    unsafe {
        if per_cpu && (functions.per_cpu)() != 0 {
            let what = "cannot start its callback threads".into();
            return Err(Error::Broken { subject: "liburcu".into(), what });
        }
        let time = time(
            &mut slots,
            |slots, start| {
                (functions.register)(1);
                start.pass();
                let began = Instant::now();
                (functions.register_slots)(slots.as_mut_ptr().cast(), share as u64);
                (functions.unregister)();
                began
            },
            || {
                (functions.barrier)();
                Ok(())
            },
        );
        if per_cpu {
            (functions.no_per_cpu)();
        }
        let time = time?;
        check(
            slots.iter().map(|s| (functions.check_slots)(s.as_ptr().cast(), share as u64)).sum(),
        )?;
        Ok(time)
    }
}

/// How long callbacks took, in nanoseconds; at least one.
fn latencies(
    lists: Lists,
    threads: usize,
    length: Duration,
    options: &Options,
) -> Result<Vec<f64>> {
    match lists {
        Lists::Reprieve { single } => {
            let domain = Domain::builder().single_list(single).build()?;
            let retire = |table: &Table, node| crate::peer::reprieve::retire(&domain, table, node);
            let times = paced(threads, length, options, retire);
            // Before the table goes.
            domain.barrier()?;
            times
        }
        #[cfg(urcu)]
        Lists::Urcu { flavor, per_cpu } => {
            let functions = flavor.functions();
            // SAFETY: this thread registers callbacks while it is registered; the per-CPU threads
            // are made and freed while no callbacks wait.
            unsafe {
                if per_cpu && (functions.per_cpu)() != 0 {
                    let what = "cannot start its callback threads".into();
                    return Err(Error::Broken { subject: "liburcu".into(), what });
                }
                (functions.register)(1);
                let times = paced(threads, length, options, |_, node| (functions.retire)(node));
                (functions.barrier)();
                (functions.unregister)();
                if per_cpu {
                    (functions.no_per_cpu)();
                }
                times
            }
        }
    }
}

/// Registers callbacks one at a time, by `retire`, beside `threads - 1` busy threads.
fn paced(
    threads: usize,
    length: Duration,
    options: &Options,
    retire: impl Fn(&Table, *mut Node),
) -> Result<Vec<f64>> {
    const REST: Duration = Duration::from_millis(2);
    let table = Table::hash(size_of::<Node>());
    table.ledger().stamp_frees();
    let stop = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let stop = &stop;
        let _stop = Last(|| stop.store(true, Ordering::Relaxed));
        let spin = move |_| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        threads::start(scope, threads.saturating_sub(1), spin)?;
        let run = || {
            let end = Instant::now() + length;
            let (mut times, mut seed) = (vec![], 12345);
            loop {
                options.check()?;
                seed = next_seed(seed);
                let (node, frees) = (table.replace(table.key(seed), false), table.ledger().freed());
                let start = clock::now();
                retire(&table, node);
                let time = crate::peer::await_frees(table.ledger(), frees + 1, start, || ())?;
                times.push(time.as_nanos() as f64);
                if Instant::now() >= end {
                    return Ok(times);
                }
                std::thread::sleep(REST);
            }
        };
        run()
    });
    if table.ledger().garbage() != 0 {
        // An error, with a callback on its way.
        std::mem::forget(table);
    }
    times
}
