// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callbacks per second, registered and run ([IPC], section on callback lists).
//!
//! A fixed number of callbacks, divided among threads that start together, is registered as fast as they can; the clock stops when all have run.
//! Heads are allocated beforehand and a callback writes one word into its own, so it is the lists, the grace periods and the callback threads that
//! are measured. There are no readers but the registering threads themselves.

use super::{Prepared, column};
use crate::Options;
use crate::crew::Gate;
use crate::error::{Error, Result};
use crate::result::{Column, Recorder, Unit, median};
use crate::schedule::Job;
use crate::subject::Class;
#[cfg(urcu)]
use crate::subject::Flavor;
use reprieve::{Cap, Domain, Head};
use std::time::{Duration, Instant};

/// Callbacks per run.
const CALLBACKS: usize = 1 << 20;

/// Who runs callbacks.
#[derive(Clone, Copy)]
enum Lists {
    Reprieve {
        single: bool,
        capped: bool,
    },
    #[cfg(urcu)]
    Urcu {
        flavor: Flavor,
        per_cpu: bool,
    },
}

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut recorder = Recorder::new(vec![Column {
        more_is_better: true,
        ..column("registered and run", Unit::KiloPerSecond)
    }]);
    #[cfg_attr(not(urcu), allow(unused_mut))]
    let mut subjects = vec![
        ("per-CPU lists", Class::Reprieve, Lists::Reprieve { single: false, capped: true }),
        (
            "per-CPU lists, no cap",
            Class::Reprieve,
            Lists::Reprieve { single: false, capped: false },
        ),
        ("one global list", Class::Reprieve, Lists::Reprieve { single: true, capped: true }),
    ];
    crate::subject::choose(&[], &options.against)?;
    #[cfg(urcu)]
    if options.against.iter().any(|a| a == "urcu") {
        for (name, flavor, per_cpu) in [
            ("urcu memb, per-CPU", Flavor::Memb, true),
            ("urcu memb, one thread", Flavor::Memb, false),
            ("urcu mb, per-CPU", Flavor::Mb, true),
            ("urcu qsbr, per-CPU", Flavor::Qsbr, true),
            ("urcu bp, per-CPU", Flavor::Bp, true),
        ] {
            subjects.push((name, Class::Peer, Lists::Urcu { flavor, per_cpu }));
        }
    }
    let mut jobs = vec![];
    for &threads in &options.readers {
        for &(name, class, lists) in &subjects {
            let group = format!("{threads} thread{}", if threads == 1 { "" } else { "s" });
            let row = recorder.row(&group, name, class);
            jobs.push(Job {
                what: format!("{group}, {name}"),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let rate = sample(lists, threads, length, options)?;
                    recorder.add(row, 0, rate / 1e3);
                    Ok(())
                }),
            });
        }
    }
    let notes = vec![format!(
        "{CALLBACKS} callbacks per run, from the first registration to the end of the last callback; one row each for per-CPU lists and one global list"
    )];
    Ok(Prepared { title: "callbacks registered and run", notes, recorder, jobs })
}

/// Median rate of as many runs as fit, at least one.
fn sample(lists: Lists, threads: usize, length: Duration, options: &Options) -> Result<f64> {
    let end = Instant::now() + length;
    let mut rates = vec![];
    loop {
        options.check()?;
        let time = match lists {
            Lists::Reprieve { single, capped } => {
                let cap = if capped { Cap::default() } else { Cap::NONE };
                reprieve_run(single, cap, threads)?
            }
            #[cfg(urcu)]
            Lists::Urcu { flavor, per_cpu } => urcu_run(flavor, per_cpu, threads)?,
        };
        rates.push((CALLBACKS / threads * threads) as f64 / time.as_secs_f64());
        if Instant::now() >= end {
            return Ok(median(&rates));
        }
    }
}

/// Runs `register` on all threads at once, with their shares of the slots, then `barrier`. From the first thread's start to the end. `register` waits at the
/// gate first and returns when it came through.
fn time<S: Send>(
    slots: &mut [Vec<S>],
    register: impl Fn(&mut [S], &Gate) -> Instant + Sync,
    barrier: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let (start_line, threads) = (Gate::default(), slots.len());
    let start = std::thread::scope(|scope| {
        let handles: Vec<_> =
            slots.iter_mut().map(|share| scope.spawn(|| register(share, &start_line))).collect();
        start_line.open(threads);
        let starts =
            handles.into_iter().map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        starts.min().unwrap_or_else(Instant::now)
    });
    barrier()?;
    Ok(start.elapsed())
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

fn reprieve_run(single: bool, cap: Cap, threads: usize) -> Result<Duration> {
    let domain = Domain::builder().single_list(single).cap(cap).build()?;
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
    // SAFETY: each thread is registered while it registers callbacks; slots live until `barrier` has returned, and each share has room for its
    // number of slots. The per-CPU threads are made and freed while no callbacks wait.
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
        )?;
        if per_cpu {
            (functions.no_per_cpu)();
        }
        check(
            slots.iter().map(|s| (functions.check_slots)(s.as_ptr().cast(), share as u64)).sum(),
        )?;
        Ok(time)
    }
}
