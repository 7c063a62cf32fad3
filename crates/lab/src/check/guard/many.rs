// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` with more than a thousand runnable vCPUs, some of whose guests lie: it stays, everybody
//! runs, shares follow weights, and lies gain nothing. What a decision takes then is reported.
//!
//! Guests in such numbers would not fit in a machine: processes play VMs (`player`). guard has them
//! in its arrays as it has every VM.

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::player::Vms;
use super::process::{End, Guard};
use super::wait;
use anyhow::{Context as _, Result, bail};
use reprieve_guard::{MAX_EXTEND, Statistics};
use serde_json::json;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// vCPUs of a VM: so many CPUs of a guest fit in guard's tables of its RCU.
const VCPUS: usize = 128;

/// VMs whose vCPUs compute without a pause, whether they lie, and their weights.
const VMS: [(&str, bool, u32); 8] = [
    ("honest", false, 100),
    ("heavy", false, 200),
    ("light", false, 50),
    ("second", false, 100),
    ("liar", true, 100),
    ("heavy-liar", true, 200),
    ("light-liar", true, 50),
    ("second-liar", true, 100),
];

/// A turn where so many compete. A VM's share may be off by a turn of all its vCPUs.
const SLICE: Duration = Duration::from_millis(1);

/// How long shares are measured, at least; and how often each thread has to get a CPU before that,
/// and meanwhile.
const WINDOW: Duration = Duration::from_secs(10);
const SETTLED: u64 = 2;
const TURNS: u64 = 4;

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    setup.progress.step("starting threads that stand in for vCPUs");
    let mut vms = Vms::start(VCPUS, &VMS)?;
    let mut guard = vms.guard(setup, 50)?;
    guard.until(setup, "guard to know all VMs", |now| {
        Ok(now.vms.iter().filter(|vm| vm.readable).count() == VMS.len())
    })?;
    vms.go()?;
    setup.progress.step("guard --policy full: the threads begin");
    all_run(&vms, setup, SETTLED, Duration::ZERO)?;
    setup.progress.timed("guard --policy full, with a thousand vCPUs", WINDOW);
    let before = Seen::now(&vms, &mut guard)?;
    all_run(&vms, setup, TURNS, WINDOW)?;
    let after = Seen::now(&vms, &mut guard)?;
    drop(vms);
    guard.end(setup, End::Signal)?;
    judge(&before, &after)
}

/// Waits until each thread has got a CPU `turns` times, and `least` has passed.
fn all_run(vms: &Vms, setup: &GuestSetup, turns: u64, least: Duration) -> Result<()> {
    let (begun, before) = (Instant::now(), vms.turns()?);
    wait(setup, "every thread to run again and again", || {
        if begun.elapsed() < least {
            return Ok(None);
        }
        let now = vms.turns()?;
        Ok(now.iter().zip(&before).all(|(now, old)| now - old >= turns).then_some(()))
    })
}

/// Everything at one moment.
struct Seen {
    used_ns: Vec<u64>,
    turns: Vec<u64>,
    guard: Statistics,
}

impl Seen {
    fn now(vms: &Vms, guard: &mut Guard) -> Result<Seen> {
        let turns = vms.turns()?.chunks(VCPUS).map(|of_vm| of_vm.iter().sum()).collect();
        Ok(Seen { turns, guard: guard.statistics()?, used_ns: vms.used_ns()? })
    }
}

/// By how much a VM's time may be off. A fair scheduler may have given each vCPU its turn a little
/// earlier or later at either end of what is measured. The vCPUs of a VM come in turn together,
/// since they have the same virtual time: so a VM's time may be off by one turn of all its vCPUs,
/// and by no more, however long is measured. A turn is a slice and an extension, or what turns took
/// in the mean, where that is more: in an emulated machine timers are late.
fn tolerance(used_ns: u64, turns: u64) -> u64 {
    let turn = SLICE + MAX_EXTEND;
    VCPUS as u64 * (used_ns / turns.max(1)).max(turn.as_nanos() as u64)
}

fn judge(before: &Seen, after: &Seen) -> Result<Finding> {
    let passed_ns = |vm: usize| after.used_ns[vm].saturating_sub(before.used_ns[vm]);
    let all = (0..VMS.len()).map(passed_ns).sum::<u64>().max(1) as f64;
    let weights = f64::from(VMS.iter().map(|vm| vm.2).sum::<u32>());
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    for (vm, (name, _, weight)) in VMS.into_iter().enumerate() {
        let own = after.guard.vms.iter().find(|own| own.name == name);
        let own = own.with_context(|| format!("{name} is not in guard's statistics"))?;
        if own.weight != weight {
            bail!("guard took the weight of {name} to be {}, not {weight}", own.weight);
        }
        let percent = |ns: u64| 100.0 * ns as f64 / all;
        let (has, due) = (percent(passed_ns(vm)), 100.0 * f64::from(weight) / weights);
        let off = percent(tolerance(passed_ns(vm), after.turns[vm] - before.turns[vm]));
        let right = (has - due).abs() <= off;
        passed &= right;
        writeln!(
            text,
            "  {name}, weight {weight}: {has:.2} % of their CPU time, {due:.2} due, {off:.2} off \
             at most; extended {} times, rescued {}{}",
            own.did.extended.count,
            own.did.rescued.count,
            if right { "" } else { "  <- wrong" },
        )?;
        figures.push(json!({
            "vm": name, "weight": weight, "percent": has, "due": due, "tolerance": off,
        }));
    }
    // The cost of scheduling depends on the machine, and fails no check.
    let times = after.guard.decision_times.since(&before.guard.decision_times);
    let (median, p99) = (times.median_ns.unwrap_or(0), times.p99_ns.unwrap_or(0));
    writeln!(text, "  a decision took {median} ns in the median, 99 % within {p99}")?;
    let figures = json!({ "vms": figures, "median_ns": times.median_ns, "p99_ns": times.p99_ns });
    Ok(Finding::new(Check::GuardMany, passed, text, figures))
}
