// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that were woken, under `guard` and under the stock scheduler.
//!
//! How long a management command of a VM takes (QMP `stop`) while vCPUs want all CPUs several times
//! over: not many times as long as under the stock scheduler. Before it answers, the
//! VMM takes its device queues away from KVM, one after the other, and waits for a grace period of
//! SRCU for each of 64. Whoever preempts a thread as it starts one, still a reader itself, delays
//! each by ticks.

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::process::{End, Guard};
use super::{STATE, refusal};
use crate::vm::Vm;
use anyhow::Result;
use reprieve_guard::Policy;
use reprieve_init::protocol::{Command, Workload};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// VMs, and how often each is stopped under each scheduler.
const VMS: u32 = 4;
const ROUNDS: usize = 4;
/// Between the commands, so that the vCPUs compete again.
const PAUSE: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_millis(300);

/// How many times as long as under the stock scheduler the commands may take in the mean. The fault
/// made them a hundred times as long; a vCPU that has to run first may wait for a longer slice.
const LONGER: f64 = 8.0;

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::GuardLatency);
    }
    let mut vms = Vec::new();
    for n in 1..=VMS {
        vms.push(setup.boot(&format!("hog{n}"), 2, 192, "")?);
    }
    setup.progress.step("the stock scheduler");
    let stock = commands(setup, &mut vms)?;
    let mut text = format!("  stock scheduler: {}\n", told(&stock));
    let (mut passed, mut figures) = (true, Vec::new());
    for policy in [Policy::Plain, Policy::Full] {
        let name = policy.name();
        setup.progress.step(&format!("guard --policy {name}"));
        // Before the guests compete: the verifier of the kernel does, too.
        let mut guard = Guard::start(setup, policy)?;
        let times = commands(setup, &mut vms)?;
        guard.statistics()?;
        guard.end(setup, End::Signal)?;
        let right = mean(&times) <= LONGER * mean(&stock);
        passed &= right;
        writeln!(text, "  {name}: {}{}", told(&times), mark(right))?;
        figures.push(json!({ "policy": name, "ms": times }));
    }
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    let figures = json!({ "stock": stock, "guard": figures });
    Ok(Finding::new(Check::GuardLatency, passed, text, figures))
}

/// Makes all VMs want all they can get, and stops each in turn, again and again. Returns the time
/// that each stop took, ms, of those that others competed with.
fn commands(setup: &GuestSetup, vms: &mut [Vm]) -> Result<Vec<f64>> {
    for vm in &mut *vms {
        setup.prepare(vm, Workload::Hog { threads: 2 }, None)?;
        setup.call(vm, &Command::Start)?;
    }
    setup.sleep(SETTLE)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        for vm in &mut *vms {
            let start = Instant::now();
            vm.pause()?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        // The last had all CPUs.
        times.pop();
        vms.iter_mut().try_for_each(Vm::resume)?;
        setup.sleep(PAUSE)?;
    }
    for vm in &mut *vms {
        setup.prepare(vm, Workload::Idle, None)?;
    }
    Ok(times)
}

fn mark(right: bool) -> &'static str {
    if right { "" } else { "  <- wrong" }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn told(times: &[f64]) -> String {
    let longest = times.iter().copied().fold(0.0, f64::max);
    format!("a stop takes {:.1} ms in the mean, {longest:.1} at most", mean(times))
}
