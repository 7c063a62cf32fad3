// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` with a queue for each CPU shares them as it does with one queue: VMs of the same weight,
//! with 1, 2 and 3 vCPUs on 2 CPUs, have a third each, and the first two alone a half each. No way
//! to place the vCPUs gives them that without moving some again and again; and with three vCPUs on
//! two CPUs only one waits, so those that run have to be compared with it.

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::process::{End, Guard};
use super::{STATE, progress, refusal};
use anyhow::{Context as _, Result};
use reprieve_host::guard::{Policy, Queues};
use reprieve_lab::protocol::{Command, Workload};
use reprieve_lab::vm::Vm;
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// vCPUs of the VMs.
const VMS: [u32; 3] = [1, 2, 3];
/// How long shares are measured, and the time before.
const WINDOW: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(500);
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
            let shares = shares(setup, &vms[..runs])?;
            let wanted = 100.0 / runs as f64;
            let right = shares.iter().all(|share| (share - wanted).abs() <= OFF);
            passed &= right;
            let listed: Vec<String> = shares.iter().map(|share| format!("{share:.1} %")).collect();
            let (vcpus, mark) = (&VMS[..runs], if right { "" } else { "  <- wrong" });
            writeln!(
                text,
                "  --queues {name}: VMs of {vcpus:?} vCPUs {}{mark}",
                listed.join(", ")
            )?;
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
    Ok(Finding::new(Check::GuardQueues, passed, text, json!({ "shares": figures })))
}

/// Of the CPU time that the VMs have together, in percent.
fn shares(setup: &GuestSetup, vms: &[Vm]) -> Result<Vec<f64>> {
    let ran = || vms.iter().map(|vm: &Vm| vm.threads().vcpu_counters().run_ns);
    let before: Vec<u64> = ran().collect();
    setup.sleep(WINDOW)?;
    let ran: Vec<u64> = ran().zip(before).map(|(after, before)| after - before).collect();
    let all = ran.iter().sum::<u64>().max(1) as f64;
    Ok(ran.iter().map(|&ran| 100.0 * ran as f64 / all).collect())
}
