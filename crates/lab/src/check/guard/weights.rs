// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights of cgroups under `guard`, beside the stock scheduler: a cgroup with many threads has its
//! share and no more, so have cgroups in another one, and so have all VMs of a cgroup together.
//! Each VM has its own share of that. A change of a weight counts from then on. Processes that come
//! and go leave nothing behind in any group.

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::cgroup::Cgroup;
use super::many::behaviour::Behaviour;
use super::many::player::Player;
use super::process::{End, Guard};
use super::{STATE, refusal, wait};
use anyhow::{Context as _, Result, bail};
use reprieve_guard::Policy;
use reprieve_watch::StandIns;
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "cpu.weight";
/// Threads of a process that computes without a pause.
const BATCH: usize = 16;
const INNER: [(&str, &str, usize); 2] = [("light", "100", 2), ("heavy", "300", 4)];
/// vCPUs of the VMs. The stock scheduler knows threads only.
const VMS: [(&str, usize); 2] = [("few", 2), ("more", 4)];
/// What the batch job's cgroup weighs, before and after.
const BEFORE: &str = "100";
const AFTER: &str = "300";

/// Processes that come and go, each in a cgroup of its own.
const VISITORS: usize = 20;

/// How long shares are measured, and the time before: a weight is read once a second.
const WINDOW: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_secs(2);
/// Points that a share may be off.
const OFF: f64 = 2.0;

/// What is measured, in the order of [`Host::used_ns`], and what is due in percent.
const DUE_BEFORE: [(&str, f64); 4] =
    [("VMs", 25.0), ("batch job", 25.0), ("light", 12.5), ("heavy", 37.5)];
const DUE_AFTER: [(&str, f64); 4] =
    [("VMs", 100.0 / 6.0), ("batch job", 50.0), ("light", 100.0 / 12.0), ("heavy", 25.0)];

/// A cgroup in another one, removed when it is dropped.
struct Inner(PathBuf);

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Dropped in this order: a cgroup is removed when nobody is in it.
struct Host {
    vms: Vec<Player>,
    _threads: Vec<Player>,
    inner: Vec<Inner>,
    batch: Cgroup,
    users: Cgroup,
    /// The last one: it may have mounted the hierarchy.
    of_vms: Cgroup,
}

impl Host {
    fn start() -> Result<Host> {
        let of_vms = Cgroup::make_named("reprieve-weights-vms")?;
        let batch = Cgroup::make_named("reprieve-weights-batch")?;
        let users = Cgroup::make_named("reprieve-weights-users")?;
        batch.write(FILE, BEFORE)?;
        users.write(FILE, "200")?;
        users.write("cgroup.subtree_control", "+cpu")?;
        let (mut inner, mut threads) = (Vec::new(), Vec::new());
        for (name, weight, count) in INNER {
            let path = users.path.join(name);
            fs::create_dir(&path).with_context(|| path.display().to_string())?;
            inner.push(Inner(path.clone()));
            fs::write(path.join(FILE), weight)?;
            threads.push(start(name, count, &path)?);
        }
        threads.push(start("batch", BATCH, &batch.path)?);
        let vms = VMS.iter().map(|&(name, vcpus)| start(name, vcpus, &of_vms.path));
        let mut vms = vms.collect::<Result<Vec<Player>>>()?;
        threads.iter_mut().chain(&mut vms).try_for_each(Player::go)?;
        Ok(Host { vms, _threads: threads, inner, batch, users, of_vms })
    }

    /// A process comes in a cgroup of the users', runs, and goes with its cgroup.
    fn visit(&self, setup: &GuestSetup) -> Result<()> {
        let path = self.users.path.join("visitor");
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let inner = Inner(path);
        let mut visitor = start("visitor", 2, &inner.0)?;
        visitor.go()?;
        let ran = || Ok((Cgroup::used_ns_of(&inner.0)? > 0).then_some(()));
        wait(setup, "a process that comes and goes to run", ran)
    }

    /// CPU time of each so far.
    fn used_ns(&self) -> Result<Vec<u64>> {
        let cgroups = [&self.of_vms.path, &self.batch.path].into_iter();
        let all = cgroups.chain(self.inner.iter().map(|inner| &inner.0));
        all.map(|path| Cgroup::used_ns_of(path)).collect()
    }

    /// CPU time of the threads of each VM so far.
    fn vms_ran_ns(&self) -> Vec<u64> {
        let ran = |vm: &Player| {
            let tids = vm.told.vcpus.iter().map(|vcpu| vcpu.tid).collect();
            crate::vm::Threads::new(vm.told.pid, tids).vcpu_counters().run_ns
        };
        self.vms.iter().map(ran).collect()
    }
}

/// A process with that many threads in the cgroup, which do not run yet.
fn start(name: &str, threads: usize, cgroup: &Path) -> Result<Player> {
    let player = Player::start(name, threads, Behaviour::Honest)?;
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, player.told.pid.to_string()).with_context(|| file.display().to_string())?;
    Ok(player)
}

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::GuardWeights, setup);
    }
    let host = Host::start()?;
    let (mut passed, mut text, mut figures) = (true, String::new(), Vec::new());
    setup.progress.step("weights under the stock scheduler");
    let (stock, _) = shares(setup, &host)?;
    line(&mut text, "stock scheduler", &stock, DUE_BEFORE, None)?;
    figures.push(json!({ "scheduler": "stock", "percent": stock }));

    setup.progress.step("weights under guard");
    let directory = tempfile::tempdir().context("directory of the description")?;
    let file = directory.path().join("stand-ins.json");
    let told = host.vms.iter().map(|vm| vm.told.clone()).collect();
    fs::write(&file, serde_json::to_string(&StandIns { vms: told, room: None })?)?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    let mut guard = Guard::start(setup, Policy::Full, &["--stand-ins", file])?;
    for (weight, due) in [(BEFORE, DUE_BEFORE), (AFTER, DUE_AFTER)] {
        host.batch.write(FILE, weight)?;
        let (seen, vms) = shares(setup, &host)?;
        let what = format!("guard, the batch job's weight {weight}");
        passed &= line(&mut text, &what, &seen, due, Some(OFF))?;
        let right = vms.iter().all(|share| (share - 50.0).abs() <= 2.0 * OFF);
        passed &= right;
        let mark = if right { "" } else { "  <- wrong" };
        writeln!(text, "    of the VMs' time, each had {:.1} and {:.1} %{mark}", vms[0], vms[1])?;
        figures.push(json!({ "scheduler": "guard", "batch": weight, "percent": seen, "vms": vms }));
        guard.check()?;
    }
    writeln!(text, "  {}", come_and_go(setup, &host, &mut guard)?)?;
    let (seen, _) = shares(setup, &host)?;
    passed &= line(&mut text, "guard, afterwards", &seen, DUE_AFTER, Some(OFF))?;
    figures.push(json!({ "scheduler": "guard", "afterwards": true, "percent": seen }));
    guard.end(setup, End::Signal)?;
    Ok(Finding::new(Check::GuardWeights, passed, text, json!({ "shares": figures })))
}

/// Processes come and go in cgroups of their own: guard forgets these.
fn come_and_go(setup: &GuestSetup, host: &Host, guard: &mut Guard) -> Result<String> {
    setup.progress.step("processes that come and go under guard");
    let known = |guard: &mut Guard| {
        let statistics = guard.line(setup)?;
        statistics["task_groups"].as_u64().context("no task_groups in guard's statistics")
    };
    let before = known(guard)?;
    // Those of the VMs, of the batch job, of the users' and the two in it.
    if before < 5 {
        bail!("guard knows {before} task groups, and there are 5 at least");
    }
    for _ in 0..VISITORS {
        host.visit(setup)?;
    }
    wait(setup, "guard to forget the cgroups of processes that ended", || {
        Ok((known(guard)? <= before).then_some(()))
    })?;
    Ok(format!(
        "{VISITORS} processes came and went, each in its own cgroup; guard knows {before} task groups, as before"
    ))
}

/// Adds a line, and says whether no share is off by more than `most`.
fn line(
    text: &mut String,
    what: &str,
    shares: &[f64],
    due: [(&str, f64); 4],
    most: Option<f64>,
) -> Result<bool> {
    let mut all = true;
    write!(text, "  {what}:")?;
    for (share, (name, due)) in shares.iter().zip(due) {
        let right = most.is_none_or(|most| (share - due).abs() <= most);
        all &= right;
        let mark = if right { "" } else { " <- wrong" };
        write!(text, " {name} {share:.1} % ({due:.1}){mark},")?;
    }
    text.pop();
    writeln!(text)?;
    Ok(all)
}

/// What each had of all CPU time, and each VM of the VMs', in percent.
fn shares(setup: &GuestSetup, host: &Host) -> Result<(Vec<f64>, Vec<f64>)> {
    setup.sleep(SETTLE)?;
    let (used, ran) = (host.used_ns()?, host.vms_ran_ns());
    setup.sleep(WINDOW)?;
    let percent = |after: Vec<u64>, before: Vec<u64>| -> Vec<f64> {
        let ns: Vec<u64> =
            after.iter().zip(&before).map(|(after, before)| after - before).collect();
        let all = ns.iter().sum::<u64>().max(1) as f64;
        ns.iter().map(|&ns| 100.0 * ns as f64 / all).collect()
    };
    Ok((percent(host.used_ns()?, used), percent(host.vms_ran_ns(), ran)))
}
