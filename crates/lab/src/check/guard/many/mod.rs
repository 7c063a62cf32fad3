// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` with more than a thousand runnable vCPUs, some of whose guests lie: it stays, everybody
//! runs, shares follow weights, and lies gain nothing. What a decision takes then is reported.
//!
//! Guests in such numbers would not fit in a machine. A VM is a process whose threads compute
//! ([`player`]), with memory that looks like a guest's ([`memory`]) and says what its [`behaviour`]
//! is. guard is told of it by a hidden option, and has it in its arrays as it has every VM.

pub mod behaviour;
mod memory;
pub mod player;
mod shares;
mod verdict;

use super::super::guest_setup::GuestSetup;
use super::super::{Check, Finding};
use super::cgroup::Cgroup;
use super::process::{End, Guard};
use super::{STATE, refusal, wait};
use anyhow::{Context as _, Result};
use behaviour::Behaviour;
use player::Player;
use reprieve_guard::{Policy, Statistics, VmStatistics};
use reprieve_watch::StandIns;
use std::path::Path;
use std::time::{Duration, Instant};

/// vCPUs of a VM: so many CPUs of a guest fit in guard's tables of its RCU.
const VCPUS: usize = 128;

/// VMs whose vCPUs compute without a pause, and their weights.
const BUSY: [(&str, Behaviour, u64); 8] = [
    ("honest", Behaviour::Honest, 100),
    ("heavy", Behaviour::Honest, 200),
    ("light", Behaviour::Honest, 50),
    ("reader", Behaviour::Reader, 100),
    ("owing", Behaviour::Owing, 100),
    ("both", Behaviour::Both, 100),
    ("spinning", Behaviour::Spinning, 100),
    ("wild", Behaviour::Wild, 100),
];

/// A whose vCPUs sleep and wake. It comes last, and guard's arrays have no entries for some.
const NAPPING: (&str, Behaviour, u64) = ("napping", Behaviour::Napping, 100);
const NAPPING_VCPUS: usize = 16;
const LEFT_OUT: usize = 8;

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
    let mut vms = Vms::start()?;
    let directory = tempfile::tempdir().context("directory of the description")?;
    let file = directory.path().join("stand-ins.json");
    std::fs::write(&file, serde_json::to_string(&vms.told())?)?;
    let file = file.to_str().context("a path that is not UTF-8")?;
    let mut guard = Guard::start(setup, Policy::Full, &["--stand-ins", file])?;
    wait(setup, "guard to know all VMs", || {
        let now = statistics(setup, &mut guard)?;
        let known =
            |player: &Player| now.vms.iter().any(|vm| vm.pid == player.told.pid && vm.readable);
        Ok(vms.players.iter().all(known).then_some(()))
    })?;
    vms.players.iter_mut().try_for_each(Player::go)?;
    setup.progress.step("guard --policy full: the threads begin");
    vms.all_run(setup, &mut guard, SETTLED, Duration::ZERO)?;
    setup.progress.timed("guard --policy full, with a thousand vCPUs", WINDOW);
    let before = Seen::now(setup, &mut guard, &vms)?;
    vms.all_run(setup, &mut guard, TURNS, WINDOW)?;
    let after = Seen::now(setup, &mut guard, &vms)?;
    drop(vms);
    guard.check()?;
    guard.end(setup, End::Signal)?;
    verdict::judge(&before, &after)
}

/// The latest statistics.
fn statistics(setup: &GuestSetup, guard: &mut Guard) -> Result<Statistics> {
    guard.check()?;
    serde_json::from_value(guard.line(setup)?).context("statistics of guard")
}

/// Their processes, each in a cgroup of its weight.
struct Vms {
    players: Vec<Player>,
    cgroups: Vec<Cgroup>,
}

impl Vms {
    fn start() -> Result<Vms> {
        let mut vms = Vms { players: Vec::new(), cgroups: Vec::new() };
        let busy = BUSY.iter().map(|vm| (vm, VCPUS));
        for (&(name, behaviour, weight), vcpus) in busy.chain([(&NAPPING, NAPPING_VCPUS)]) {
            let player = Player::start(name, vcpus, behaviour)?;
            let cgroup = Cgroup::make_named(&format!("reprieve-many-{name}"))?;
            cgroup.write("cpu.weight", &weight.to_string())?;
            cgroup.write("cgroup.procs", &player.told.pid.to_string())?;
            vms.players.push(player);
            vms.cgroups.push(cgroup);
        }
        Ok(vms)
    }

    fn told(&self) -> StandIns {
        let vms = self.players.iter().map(|player| player.told.clone()).collect();
        let all = StandIns { vms, room: None };
        StandIns { room: Some(all.vcpus() - LEFT_OUT), ..all }
    }

    fn turns(&self) -> Result<Vec<Vec<u64>>> {
        self.players.iter().map(Player::turns).collect()
    }

    /// Waits until each thread has got a CPU `turns` times, and `least` has passed.
    fn all_run(
        &self,
        setup: &GuestSetup,
        guard: &mut Guard,
        turns: u64,
        least: Duration,
    ) -> Result<()> {
        let (begun, before) = (Instant::now(), self.turns()?);
        let mut fewest = 0;
        let done = wait(setup, "every thread to run again and again", || {
            guard.check()?;
            if begun.elapsed() < least {
                return Ok(None);
            }
            let now = self.turns()?;
            let new = now.iter().flatten().zip(before.iter().flatten()).map(|(now, old)| now - old);
            fewest = new.min().unwrap_or(0);
            Ok((fewest >= turns).then_some(()))
        });
        done.with_context(|| format!("one ran {fewest} times of {turns}"))
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        // All at once: until they are gone, those that are left take the CPUs.
        self.players.iter_mut().for_each(Player::kill);
        // A cgroup is removed when nobody is in it, and the first one may have mounted the
        // hierarchy.
        self.players.clear();
        while self.cgroups.pop().is_some() {}
    }
}

/// Everything at one moment.
struct Seen {
    at: Instant,
    used_ns: Vec<u64>,
    turns: Vec<Vec<u64>>,
    guard: Statistics,
    pids: Vec<u32>,
}

impl Seen {
    fn now(setup: &GuestSetup, guard: &mut Guard, vms: &Vms) -> Result<Seen> {
        Ok(Seen {
            turns: vms.turns()?,
            guard: statistics(setup, guard)?,
            at: Instant::now(),
            used_ns: vms.cgroups.iter().map(Cgroup::used_ns).collect::<Result<_>>()?,
            pids: vms.players.iter().map(|player| player.told.pid).collect(),
        })
    }

    fn vm(&self, index: usize) -> Result<&VmStatistics> {
        let pid = self.pids[index];
        let found = self.guard.vms.iter().find(|vm| vm.pid == pid);
        found.with_context(|| format!("process {pid} is not in guard's statistics"))
    }
}
