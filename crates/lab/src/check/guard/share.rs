// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares under `guard`. Beside ordinary threads that compute on every CPU, VMs have what is
//! reserved for them, and by weight among each other. Without such threads they have all, also
//! where more than a thousand vCPUs compete: everybody runs, and guests that lie gain nothing.
//!
//! Guests in such numbers would not fit in a machine: processes play VMs (`player`). guard has them
//! in its arrays as it has every VM.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::Spinner;
use super::super::{Check, Finding};
use super::player::{Player, Vms};
use super::process::End;
use super::wait;
use anyhow::Result;
use reprieve_guard::MAX_EXTEND;
use serde_json::json;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Reservations, in percent of each CPU, of two VMs beside a thread that computes on each CPU.
const RESERVED: [u8; 4] = [5, 25, 50, 75];
const TWO: [Player; 2] = [("light", false, 100), ("heavy", false, 300)];
/// The VMs that compete alone.
const EIGHT: [Player; 8] = [
    ("honest", false, 100),
    ("heavy", false, 200),
    ("light", false, 50),
    ("second", false, 100),
    ("liar", true, 100),
    ("heavy-liar", true, 200),
    ("light-liar", true, 50),
    ("second-liar", true, 100),
];
/// Their vCPUs: so many CPUs of a guest fit in guard's tables of its RCU.
const VCPUS: usize = 128;

/// How long shares are measured, at least; and how often each thread has to get a CPU before that,
/// and meanwhile.
const WINDOW: Duration = Duration::from_secs(10);
const SETTLED: u64 = 2;
const TURNS: u64 = 4;

/// Points that a share may be off beside ordinary threads.
const OFF: f64 = 4.0;
/// The share that VMs may have beyond the reserved one: in each period of 50 ms, the kernel ends
/// the server's turn at a tick, 4 ms late at most.
const LATE: f64 = 8.0;
/// The least that VMs have of CPUs that no other thread wants, in percent.
const ALONE: f64 = 90.0;
/// A turn where a thousand compete.
const SLICE: Duration = Duration::from_millis(1);

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let cpus = few_cpus();
    let beside = RESERVED.map(|percent| (&TWO[..], cpus.len(), percent, true));
    let alone = (&EIGHT[..], VCPUS, 50, false);
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    for (players, vcpus, percent, hogs) in beside.into_iter().chain([alone]) {
        let count = players.len() * vcpus;
        setup.progress.step(&format!("guard, {count} vCPUs, {percent} % reserved"));
        let mut vms = Vms::start(vcpus, players)?;
        let mut guard = vms.guard(setup, percent)?;
        guard.until(setup, "guard to know all VMs and their weights", |now| {
            let knows = |(name, _, weight): &Player| {
                let own = now.vms.iter().find(|own| own.name == *name);
                own.is_some_and(|own| own.readable && own.weight == *weight)
            };
            Ok(players.iter().all(knows))
        })?;
        let spinners = cpus.iter().filter(|_| hogs).map(|&cpu| Spinner::start(cpu));
        let spinners = spinners.collect::<Result<Vec<_>>>()?;
        vms.go();
        all_run(&vms, setup, SETTLED, Duration::ZERO)?;
        // Reading what a thousand threads did takes time, which is not part of the window.
        let (turns, used, began) = (vms.turns()?, vms.used_ns()?, Instant::now());
        all_run(&vms, setup, TURNS, WINDOW)?;
        let (used_now, took) = (vms.used_ns()?, began.elapsed());
        let used: Vec<u64> = used_now.iter().zip(used).map(|(now, old)| now - old).collect();
        let turns: Vec<u64> = vms.turns()?.iter().zip(turns).map(|(now, old)| now - old).collect();
        let time = took.as_nanos() as f64 * cpus.len() as f64;
        drop((spinners, vms));
        guard.end(setup, End::Signal)?;

        let all = used.iter().sum::<u64>().max(1) as f64;
        let (had, reserved) = (100.0 * all / time, f64::from(percent));
        let mut right = if hogs {
            (reserved - OFF..=reserved + LATE + OFF).contains(&had)
        } else {
            had >= ALONE
        };
        let beside = if hogs { ", a hog per CPU" } else { "" };
        write!(text, "  {count} vCPUs, {percent} % reserved{beside}: VMs have {had:.1} %")?;
        let weights = f64::from(players.iter().map(|player| player.2).sum::<u32>());
        for (vm, (name, _, weight)) in players.iter().enumerate() {
            let (has, due) = (100.0 * used[vm] as f64 / all, 100.0 * f64::from(*weight) / weights);
            let turns: u64 = turns[vm * vcpus..][..vcpus].iter().sum();
            let tolerance = 100.0 * tolerance(vcpus, used[vm], turns) as f64 / all;
            let off = if hogs { OFF } else { tolerance };
            right &= (has - due).abs() <= off;
            write!(text, "; {name} {has:.2} of these, {due:.2} due, {off:.2} off at most")?;
        }
        writeln!(text, "{}", if right { "" } else { "  <- wrong" })?;
        passed &= right;
        figures.push(json!({ "reserved": percent, "vcpus": count, "percent": had, "ns": used }));
    }
    Ok(Finding::new(Check::GuardShare, passed, text, json!({ "figures": figures })))
}

/// Waits until each thread has got a CPU `turns` times, and `least` has passed.
fn all_run(vms: &Vms, setup: &GuestSetup, turns: u64, least: Duration) -> Result<()> {
    let (begun, before) = (Instant::now(), vms.turns()?);
    wait(setup, "every thread to run again and again", || {
        let all = |now: Vec<u64>| now.iter().zip(&before).all(|(now, old)| now - old >= turns);
        Ok(begun.elapsed() >= least && all(vms.turns()?))
    })
}

/// By how much a VM's time may be off. A fair scheduler may have given each vCPU its turn a little
/// earlier or later at either end of what is measured. The vCPUs of a VM come in turn together,
/// since they have the same virtual time: so a VM's time may be off by one turn of all its vCPUs,
/// and by no more, however long is measured. A turn is a slice and an extension, or what turns took
/// in the mean, where that is more: in an emulated machine timers are late.
fn tolerance(vcpus: usize, used_ns: u64, turns: u64) -> u64 {
    let turn = SLICE + MAX_EXTEND;
    vcpus as u64 * (used_ns / turns.max(1)).max(turn.as_nanos() as u64)
}
