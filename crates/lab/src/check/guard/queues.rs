// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` with a queue for each CPU shares them as it does with one queue: VMs of the same weight,
//! with 1, 2 and 3 vCPUs on 2 CPUs, have a third each, and the first two alone a half each. No way
//! to place the vCPUs gives them that without moving some again and again; and with three vCPUs on
//! two CPUs only one waits, so those that run have to be compared with it. Threads that lose their
//! CPU where they may not migrate have no more of it than others, and as much as each other on
//! several CPUs.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use super::super::{Check, Finding};
use super::process::{End, Guard};
use super::{STATE, progress, refusal};
use crate::vm::{SchedCounters, Threads, Vm};
use anyhow::{Context as _, Result};
use reprieve_guard::{Policy, Queues};
use reprieve_init::protocol::{Command, Workload};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// vCPUs of the VMs.
const VMS: [u32; 3] = [1, 2, 3];
/// How long shares are measured, and the time before.
const WINDOW: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(500);
/// Threads that may not migrate, on all CPUs.
const FREE: usize = 5;
/// Points that a share may be off.
const OFF: f64 = 2.0;

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::GuardQueues, setup);
    }
    let mut vms = Vec::new();
    for vcpus in VMS {
        vms.push(setup.boot(&format!("hog{vcpus}"), vcpus, 192, "")?);
    }
    for (vm, threads) in vms.iter_mut().zip(VMS) {
        setup.prepare(vm, Workload::Hog { threads }, None)?;
        setup.call(vm, &Command::Start)?;
    }
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    for runs in [VMS.len(), 2] {
        for vm in &mut vms[runs..] {
            vm.pause()?;
        }
        for queues in [Queues::Host, Queues::Cpu] {
            let name = queues.name();
            setup.progress.step(&format!("guard --queues {name}, {runs} VMs"));
            let mut guard = Guard::start(setup, Policy::Full, &["--queues", name])?;
            setup.sleep(SETTLE)?;
            let threads: Vec<&Threads> = vms[..runs].iter().map(Vm::threads).collect();
            let shares = percent(&counted(setup, &threads)?);
            let right = are_equal(&shares);
            passed &= right;
            let (vcpus, mark) = (&VMS[..runs], if right { "" } else { "  <- wrong" });
            let listed = listed(&shares);
            writeln!(text, "  --queues {name}: VMs of {vcpus:?} vCPUs {listed}{mark}")?;
            figures.push(json!({ "queues": name, "vcpus": vcpus, "percent": shares }));
            guard.check()?;
            guard.end(setup, End::Signal)?;
            progress(setup, &vms[..runs]).context("after guard ended")?;
        }
    }
    for vm in &mut vms[2..] {
        vm.resume()?;
    }
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    let pinned = pinned(setup)?;
    passed &= pinned.iter().all(|of| of.right);
    for Pinned { what, queues, counters, right } in &pinned {
        let (shares, turns) = (listed(&percent(counters)), turns(counters));
        let mark = if *right { "" } else { "  <- wrong" };
        let name = queues.name();
        writeln!(text, "  --queues {name}: {what}: {shares}, turns {turns:?}{mark}")?;
    }
    let pinned = pinned.iter().map(|of| {
        let (percent, turns) = (percent(&of.counters), turns(&of.counters));
        json!({ "queues": of.queues.name(), "threads": of.what, "percent": percent, "turns": turns })
    });
    let figures = json!({ "shares": figures, "pinned": pinned.collect::<Vec<_>>() });
    Ok(Finding::new(Check::GuardQueues, passed, text, figures))
}

/// Threads of which some spend their time where they may not migrate.
struct Pinned {
    what: String,
    queues: Queues,
    counters: Vec<SchedCounters>,
    right: bool,
}

fn pinned(setup: &GuestSetup) -> Result<Vec<Pinned>> {
    let cpus = few_cpus();
    let last = cpus.last().copied().context("no CPU")?;
    let bound = || -> Result<Vec<Spinner>> {
        let filtered = || Spinner::filtered(vec![last]);
        Ok(vec![Spinner::start(last)?, filtered()?, filtered()?])
    };
    let free = || (0..FREE).map(|_| Spinner::filtered(cpus.clone())).collect();
    let beside = "a CPU's threads, the last two in filters of system calls";
    let all = format!("{FREE} threads in filters on {} CPUs", cpus.len());
    let mut found = Vec::new();
    for (what, queues, spinners) in [
        (beside, Queues::Host, &bound as &dyn Fn() -> Result<Vec<Spinner>>),
        (&all, Queues::Host, &free),
        (&all, Queues::Cpu, &free),
    ] {
        let name = queues.name();
        setup.progress.step(&format!("guard --queues {name}, {what}"));
        let mut guard = Guard::start(setup, Policy::Full, &["--queues", name])?;
        let spinners = spinners()?;
        setup.sleep(SETTLE)?;
        let own = std::process::id();
        let threads = spinners.iter().map(|spinner| Threads::new(own, vec![spinner.tid]));
        let threads: Vec<Threads> = threads.collect();
        let counters = counted(setup, &threads.iter().collect::<Vec<_>>())?;
        drop(spinners);
        guard.check()?;
        guard.end(setup, End::Signal)?;
        let turns = turns(&counters);
        // Two that take turns, while guard is not asked, have many short ones.
        let even = turns.iter().max() <= turns.iter().min().map(|least| 2 * least).as_ref();
        let right = are_equal(&percent(&counters)) && even;
        found.push(Pinned { what: what.into(), queues, counters, right });
    }
    Ok(found)
}

fn are_equal(shares: &[f64]) -> bool {
    let wanted = 100.0 / shares.len() as f64;
    shares.iter().all(|share| (share - wanted).abs() <= OFF)
}

fn listed(shares: &[f64]) -> String {
    let listed: Vec<String> = shares.iter().map(|share| format!("{share:.1} %")).collect();
    listed.join(", ")
}

/// What they do in [`WINDOW`].
fn counted(setup: &GuestSetup, all: &[&Threads]) -> Result<Vec<SchedCounters>> {
    let now = || all.iter().map(|threads| threads.vcpu_counters());
    let before: Vec<SchedCounters> = now().collect();
    setup.sleep(WINDOW)?;
    Ok(now().zip(before).map(|(after, before)| after.since(before)).collect())
}

/// Of the CPU time that all of them have together.
fn percent(counters: &[SchedCounters]) -> Vec<f64> {
    let all = counters.iter().map(|of| of.run_ns).sum::<u64>().max(1) as f64;
    counters.iter().map(|of| 100.0 * of.run_ns as f64 / all).collect()
}

/// How often each of them lost its CPU.
fn turns(counters: &[SchedCounters]) -> Vec<u64> {
    counters.iter().map(|of| of.preemptions).collect()
}
