// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares under `guard`: beside ordinary threads that compute on every CPU, VMs have what is
//! reserved for them, and by weight among each other; without such threads they have all.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use super::super::{Check, Finding};
use super::player::Vms;
use super::process::End;
use anyhow::Result;
use serde_json::json;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Reservations, in percent of each CPU.
const RESERVED: [u8; 4] = [5, 25, 50, 75];
/// VMs, none of which lies, and the weights of their cgroups.
const VMS: [(&str, bool, u32); 2] = [("light", false, 100), ("heavy", false, 300)];
/// How long shares are measured, and the time before: a weight is read once in 5 s.
const WINDOW: Duration = Duration::from_secs(4);
const SETTLE: Duration = Duration::from_secs(1);
/// Points that a share may be off.
const OFF: f64 = 4.0;
/// The share that VMs may have beyond the reserved one: in each period of 50 ms, the kernel ends
/// the server's turn at a tick, 4 ms late at most.
const LATE: f64 = 8.0;
/// The least that VMs have of CPUs that no other thread wants, in percent.
const ALONE: f64 = 90.0;

/// The share that each VM has of so many CPUs, in percent.
fn shares(vms: &Vms, cpus: usize, setup: &GuestSetup) -> Result<Vec<f64>> {
    setup.sleep(SETTLE)?;
    let (began, before) = (Instant::now(), vms.used_ns()?);
    setup.sleep(WINDOW)?;
    let (after, took) = (vms.used_ns()?, began.elapsed());
    let all = took.as_nanos() as f64 * cpus as f64;
    Ok(after.iter().zip(&before).map(|(a, b)| 100.0 * (a - b) as f64 / all).collect())
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let cpus = few_cpus();
    let mut vms = Vms::start(cpus.len(), &VMS)?;
    vms.go()?;
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    for percent in RESERVED {
        setup.progress.step(&format!("guard, {percent} % reserved"));
        let guard = vms.guard(setup, percent)?;
        if percent == RESERVED[0] {
            let alone: f64 = shares(&vms, cpus.len(), setup)?.iter().sum();
            passed &= alone >= ALONE;
            writeln!(text, "  no other threads: VMs have {alone:.1} %")?;
        }
        let hogs: Vec<Spinner> =
            cpus.iter().map(|&cpu| Spinner::start(cpu)).collect::<Result<_>>()?;
        let shares = shares(&vms, cpus.len(), setup)?;
        let all: f64 = shares.iter().sum();
        let heavy = 100.0 * shares[1] / all;
        let due = 100.0 * f64::from(VMS[1].2) / f64::from(VMS[0].2 + VMS[1].2);
        let reserved = f64::from(percent);
        let right =
            (reserved - OFF..=reserved + LATE + OFF).contains(&all) && (heavy - due).abs() <= OFF;
        passed &= right;
        let mark = if right { "" } else { "  <- wrong" };
        writeln!(
            text,
            "  {percent} % reserved, a hog per CPU: VMs have {all:.1} %, of which the heavy one \
             {heavy:.1} ({due:.1}){mark}"
        )?;
        figures.push(json!({ "reserved": percent, "vms": shares }));
        drop(hogs);
        guard.end(setup, End::Signal)?;
    }
    Ok(Finding::new(Check::GuardShare, passed, text, json!({ "figures": figures })))
}
