// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` with more than a thousand runnable vCPUs, some of whose guests lie: it stays, everybody
//! runs, shares follow weights, and lies gain nothing. What a decision takes then is reported.
//!
//! Guests in such numbers would not fit in a machine. A VM is a process whose threads compute
//! ([`player`]), with memory that looks like a guest's ([`guest`]). guard is told of it by a hidden
//! option, and has it in its arrays as it has every VM.

mod guest;
pub mod player;

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::process::{End, Guard};
use super::{STATE, refusal, wait};
use anyhow::{Context as _, Result, bail};
use player::{PlayArgs, Vms};
use reprieve_guard::{MAX_EXTEND, Policy, Statistics};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
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

pub(in crate::check) fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::GuardMany, setup);
    }
    setup.progress.step("starting threads that stand in for vCPUs");
    let mut vms = Vms::start(VMS.map(|(name, lies, weight)| {
        (PlayArgs { name: format!("many-{name}"), vcpus: VCPUS, lies }, weight)
    }))?;
    let options = vms.options()?;
    let mut guard = Guard::start(setup, Policy::Full, &options.each_ref().map(String::as_str))?;
    wait(setup, "guard to know all VMs", || {
        let now = statistics(setup, &mut guard)?;
        let known = |pid| now.vms.iter().any(|vm| vm.pid == pid && vm.readable);
        Ok(vms.pids().into_iter().all(known).then_some(()))
    })?;
    vms.go()?;
    setup.progress.step("guard --policy full: the threads begin");
    all_run(&vms, setup, &mut guard, SETTLED, Duration::ZERO)?;
    setup.progress.timed("guard --policy full, with a thousand vCPUs", WINDOW);
    let before = Seen::now(setup, &mut guard, &vms)?;
    all_run(&vms, setup, &mut guard, TURNS, WINDOW)?;
    let after = Seen::now(setup, &mut guard, &vms)?;
    let pids = vms.pids();
    drop(vms);
    guard.check()?;
    guard.end(setup, End::Signal)?;
    judge(&pids, &before, &after)
}

/// The latest statistics.
fn statistics(setup: &GuestSetup, guard: &mut Guard) -> Result<Statistics> {
    guard.check()?;
    serde_json::from_value(guard.line(setup)?).context("statistics of guard")
}

/// Waits until each thread has got a CPU `turns` times, and `least` has passed.
fn all_run(
    vms: &Vms,
    setup: &GuestSetup,
    guard: &mut Guard,
    turns: u64,
    least: Duration,
) -> Result<()> {
    let (begun, before) = (Instant::now(), vms.turns()?);
    let mut fewest = 0;
    let done = wait(setup, "every thread to run again and again", || {
        guard.check()?;
        if begun.elapsed() < least {
            return Ok(None);
        }
        let now = vms.turns()?;
        let new = now.iter().flatten().zip(before.iter().flatten()).map(|(now, old)| now - old);
        fewest = new.min().unwrap_or(0);
        Ok((fewest >= turns).then_some(()))
    });
    done.with_context(|| format!("one ran {fewest} times of {turns}"))
}

/// Everything at one moment.
struct Seen {
    used_ns: Vec<u64>,
    turns: Vec<u64>,
    guard: Statistics,
}

impl Seen {
    fn now(setup: &GuestSetup, guard: &mut Guard, vms: &Vms) -> Result<Seen> {
        Ok(Seen {
            turns: vms.turns()?.iter().map(|of_vm| of_vm.iter().sum()).collect(),
            guard: statistics(setup, guard)?,
            used_ns: vms.used_ns()?,
        })
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

fn judge(pids: &[u32], before: &Seen, after: &Seen) -> Result<Finding> {
    let passed_ns = |vm: usize| after.used_ns[vm].saturating_sub(before.used_ns[vm]);
    let all = (0..VMS.len()).map(passed_ns).sum::<u64>().max(1) as f64;
    let weights = f64::from(VMS.iter().map(|vm| vm.2).sum::<u32>());
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    for (vm, (name, _, weight)) in VMS.into_iter().enumerate() {
        let own = after.guard.vms.iter().find(|own| own.pid == pids[vm]);
        let own = own.with_context(|| format!("{name} is not in guard's statistics"))?;
        if own.weight != weight {
            bail!("guard took the weight of {name} to be {}, not {weight}", own.weight);
        }
        let used = passed_ns(vm);
        let percent = |ns: u64| 100.0 * ns as f64 / all;
        let due = 100.0 * f64::from(weight) / weights;
        let off = percent(tolerance(used, after.turns[vm] - before.turns[vm]));
        let right = (percent(used) - due).abs() <= off;
        passed &= right;
        writeln!(
            text,
            "  {name}, weight {weight}: {:.2} % of their CPU time, {due:.2} due, {off:.2} off at \
             most; extended {} times, rescued {}{}",
            percent(used),
            own.extended.count,
            own.rescued.count,
            if right { "" } else { "  <- wrong" },
        )?;
        figures.push(json!({
            "vm": name, "weight": weight, "percent": percent(used), "due": due, "tolerance": off,
        }));
    }
    // The cost of scheduling depends on the machine, and fails no check.
    let times = after.guard.decision_times.since(&before.guard.decision_times);
    writeln!(
        text,
        "  a decision took {} ns in the median, 99 % within {}",
        times.median_ns.unwrap_or(0),
        times.p99_ns.unwrap_or(0),
    )?;
    let figures = json!({ "vms": figures, "median_ns": times.median_ns, "p99_ns": times.p99_ns });
    Ok(Finding::new(Check::GuardMany, passed, text, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_timers_make_turns_longer() {
        let turn = (SLICE + MAX_EXTEND).as_nanos() as u64;
        assert_eq!(tolerance(1000 * turn, 2000), VCPUS as u64 * turn);
        assert_eq!(tolerance(1000 * turn, 100), VCPUS as u64 * 10 * turn);
    }
}
