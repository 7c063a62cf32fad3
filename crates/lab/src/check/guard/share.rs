// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shares under `guard`: beside ordinary threads that compute on every CPU, VMs have what is
//! reserved for them, and by weight among each other; without such threads they have all. Beside
//! what is reserved, ordinary and real-time threads run soon after they are woken.

use super::super::guest_setup::{GuestSetup, few_cpus};
use super::super::load::{Spinner, real_time};
use super::super::{Check, Finding};
use super::cgroup::Cgroup;
use super::many::behaviour::Behaviour;
use super::many::player::Player;
use super::process::{End, Guard};
use super::{STATE, refusal};
use crate::vm::Threads;
use anyhow::{Context as _, Result, anyhow};
use reprieve_guard::Policy;
use reprieve_watch::StandIns;
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Reservations, in percent of each CPU.
const RESERVED: [u8; 4] = [5, 25, 50, 75];
/// VMs, and the weights of their cgroups.
const VMS: [(&str, u32); 2] = [("light", 100), ("heavy", 300)];
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

/// How often a thread is woken whose wake-ups are measured, and how long it computes after each.
const WAKE_UPS: usize = 200;
const NAP: Duration = Duration::from_millis(1);
const BUSY: Duration = Duration::from_micros(200);

/// Dropped in this order: a cgroup is removed when it is empty.
struct Host {
    vms: Vec<Player>,
    _cgroups: Vec<Cgroup>,
    cpus: Vec<u32>,
}

impl Host {
    fn start() -> Result<Host> {
        let cpus = few_cpus();
        let (mut vms, mut cgroups) = (Vec::new(), Vec::new());
        for (name, weight) in VMS {
            let cgroup = Cgroup::make_named(&format!("reprieve-share-{name}"))?;
            cgroup.write("cpu.weight", &weight.to_string())?;
            let vm = Player::start(name, cpus.len(), Behaviour::Honest)?;
            cgroup.write("cgroup.procs", &vm.told.pid.to_string())?;
            vms.push(vm);
            cgroups.push(cgroup);
        }
        vms.iter_mut().try_for_each(Player::go)?;
        Ok(Host { vms, _cgroups: cgroups, cpus })
    }

    /// CPU time of each VM so far.
    fn ran_ns(&self) -> Vec<u64> {
        let ran = |vm: &Player| {
            let tids = vm.told.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            Threads::new(vm.told.pid, tids).vcpu_counters().run_ns
        };
        self.vms.iter().map(ran).collect()
    }

    /// The share that each VM has of all CPUs, in percent.
    fn shares(&self, setup: &GuestSetup) -> Result<Vec<f64>> {
        setup.sleep(SETTLE)?;
        let (began, before) = (Instant::now(), self.ran_ns());
        setup.sleep(WINDOW)?;
        let (after, took) = (self.ran_ns(), began.elapsed());
        let all = took.as_nanos() as f64 * self.cpus.len() as f64;
        Ok(after.iter().zip(&before).map(|(a, b)| 100.0 * (a - b) as f64 / all).collect())
    }

    /// A thread that computes on each CPU.
    fn hogs(&self) -> Result<Vec<Spinner>> {
        self.cpus.iter().map(|&cpu| Spinner::start(cpu)).collect()
    }
}

/// How late a thread is woken that sleeps again and again: in the mean and at most, ms.
fn wake_ups(urgent: bool) -> Result<[f64; 2]> {
    let sleeper = std::thread::Builder::new().name("sleeper".into()).spawn(move || {
        if urgent {
            real_time(rustix::thread::gettid().as_raw_nonzero().get() as u32)?;
        }
        let late = |_| {
            let due = Instant::now() + NAP;
            std::thread::sleep(NAP);
            let late = due.elapsed();
            let woken = Instant::now();
            while woken.elapsed() < BUSY {
                std::hint::spin_loop();
            }
            late.as_secs_f64() * 1e3
        };
        Ok::<_, anyhow::Error>((0..WAKE_UPS).map(late).collect::<Vec<f64>>())
    })?;
    let late = sleeper.join().map_err(|_| anyhow!("the sleeper panicked"))??;
    let most = late.iter().copied().fold(0.0, f64::max);
    Ok([late.iter().sum::<f64>() / late.len() as f64, most])
}

/// A line of wake-ups, which are reported and not judged: any other work of the machine delays
/// them.
fn line(text: &mut String, what: &str) -> Result<serde_json::Value> {
    let (ordinary, urgent) = (wake_ups(false)?, wake_ups(true)?);
    writeln!(
        text,
        "  {what}: woken {:.1} ms late in the mean, {:.1} at most; with a real-time priority \
         {:.1}, {:.1}",
        ordinary[0], ordinary[1], urgent[0], urgent[1]
    )?;
    Ok(json!({ "what": what, "ordinary_ms": ordinary, "real_time_ms": urgent }))
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::GuardShare, setup);
    }
    let host = Host::start()?;
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    setup.progress.step("the stock scheduler");
    {
        let _hogs = host.hogs()?;
        figures.push(line(&mut text, "stock scheduler, VMs and a hog per CPU")?);
    }
    let directory = tempfile::tempdir().context("directory of the description")?;
    let file = directory.path().join("stand-ins.json");
    let told = host.vms.iter().map(|vm| vm.told.clone()).collect();
    fs::write(&file, serde_json::to_string(&StandIns { vms: told, room: None })?)?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    for percent in RESERVED {
        setup.progress.step(&format!("guard, {percent} % reserved"));
        let reserve = format!("{percent}%");
        let options = ["--stand-ins", file, "--reserve", &reserve];
        let mut guard = Guard::start(setup, Policy::Full, &options)?;
        if percent == RESERVED[0] {
            let alone: f64 = host.shares(setup)?.iter().sum();
            passed &= alone >= ALONE;
            writeln!(text, "  guard, no other threads: VMs have {alone:.1} %")?;
            figures.push(line(&mut text, "guard, no other threads")?);
        }
        let hogs = host.hogs()?;
        let shares = host.shares(setup)?;
        let all: f64 = shares.iter().sum();
        let heavy = 100.0 * shares[1] / all;
        let due = 100.0 * f64::from(VMS[1].1) / f64::from(VMS[0].1 + VMS[1].1);
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
        figures.push(line(&mut text, &format!("{percent} % reserved, a hog per CPU"))?);
        drop(hogs);
        guard.check()?;
        guard.end(setup, End::Signal)?;
    }
    Ok(Finding::new(Check::GuardShare, passed, text, json!({ "figures": figures })))
}
