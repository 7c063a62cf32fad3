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
use crate::vm::Vm;
use anyhow::Result;
use reprieve_guard::Policy;
use reprieve_init::protocol::Workload;
use serde_json::json;
use std::fmt::Write as _;
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
    let vms = (1..=VMS).map(|n| setup.boot(&format!("hog{n}"), 2, 192, ""));
    let mut vms = vms.collect::<Result<Vec<Vm>>>()?;
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    let mut stock = None;
    for policy in [None, Some(Policy::Plain), Some(Policy::Full)] {
        let name = policy.map_or("stock scheduler", Policy::name);
        setup.progress.step(name);
        // Before the guests compete: the verifier of the kernel does, too.
        let guard = policy.map(|policy| Guard::start(setup, policy)).transpose()?;
        let times = commands(setup, &mut vms)?;
        guard.map(|guard| guard.end(setup, End::Signal)).transpose()?;
        let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let longest = times.iter().copied().fold(0.0, f64::max);
        let right = mean <= LONGER * *stock.get_or_insert(mean);
        passed &= right;
        let mark = if right { "" } else { "  <- wrong" };
        writeln!(
            text,
            "  {name}: a stop takes {mean:.1} ms in the mean, {longest:.1} at most{mark}"
        )?;
        figures.push(json!({ "scheduler": name, "ms": times }));
    }
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    Ok(Finding::new(Check::GuardLatency, passed, text, json!({ "schedulers": figures })))
}

/// Makes all VMs want all they can get, and stops each in turn, again and again. Returns the time
/// that each stop took, ms, of those that others competed with.
fn commands(setup: &GuestSetup, vms: &mut [Vm]) -> Result<Vec<f64>> {
    for vm in &mut *vms {
        setup.start(vm, Workload::Hog { threads: 2 })?;
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
    vms.iter_mut().try_for_each(|vm| setup.prepare(vm, Workload::Idle, None))?;
    Ok(times)
}
