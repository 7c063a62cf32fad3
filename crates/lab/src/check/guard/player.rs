// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that play VMs, each in a cgroup of its weight. Their threads, the vCPUs, compute.

use super::super::guest_setup::GuestSetup;
use super::process::Guard;
use crate::guard_process::own_command;
use crate::plan::CpuControl;
use crate::process;
use crate::signals::cancel_on_signal;
use crate::vm::cgroup::{Cgroup, Cgroups};
use anyhow::{Context as _, Result};
use clap::Args;
use reprieve_guard::control::Control;
use reprieve_guard::{Error, Options};
use reprieve_page::output::print;
use reprieve_watch::StandIn;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Bytes of a thread's stack: there are many.
const STACK: usize = 64 << 10;

#[derive(Args)]
pub struct PlayArgs {
    name: String,
    vcpus: usize,
    #[arg(long)]
    lies: bool,
}

/// Prints what guard has to know, and computes from the end of standard input on.
pub fn play(args: &PlayArgs) -> Result<()> {
    let ram = Box::leak(Box::new(StandIn::ram(args.lies)));
    let begin = Arc::new(Barrier::new(args.vcpus + 1));
    for _ in 0..args.vcpus {
        let begin = begin.clone();
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            begin.wait();
            loop {
                std::hint::spin_loop();
            }
        })?;
    }
    let pid = std::process::id();
    let tasks = fs::read_dir("/proc/self/task")?.flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let vcpus = tids.filter(|&tid| tid != pid).collect();
    let told = StandIn { pid, name: args.name.clone(), vcpus, ram: ram.as_ptr() as u64 };
    print(&(serde_json::to_string(&told)? + "\n"))?;
    std::io::stdin().read_line(&mut String::new())?;
    begin.wait();
    loop {
        std::thread::park();
    }
}

#[derive(Args)]
pub struct GuardArgs {
    /// As `guard --reserve`
    reserve: u8,
    /// The players
    stand_ins: String,
}

/// guard with players for VMs.
pub fn guard(args: &GuardArgs) -> Result<()> {
    let stand_ins = serde_json::from_str(&args.stand_ins)?;
    let cancel = cancel_on_signal()?;
    let options = Options { reserve: args.reserve, stand_ins, ..Options::default() };
    let mut guard = reprieve_guard::start(&options)?;
    let control = Control::listen()?;
    let each = |_: &_| Ok::<(), Error>(());
    let (interval, flag) = (Duration::from_secs(1), cancel.flag());
    Ok(reprieve_guard::run(&mut *guard, interval, None, &flag, Some(&control), each)?)
}

/// What a player is to be: its name, whether it lies, and its weight.
pub type Player = (&'static str, bool, u32);

struct Playing {
    child: Child,
    told: StandIn,
    cgroup: Cgroup,
}

/// VMs that processes play, which are killed when this is dropped.
pub struct Vms(Vec<Playing>);

impl Vms {
    /// Starts players with `vcpus` threads each, which wait.
    pub fn start(vcpus: usize, all: &[Player]) -> Result<Vms> {
        let hierarchy = Cgroups::open(false)?;
        let mut vms = Vms(Vec::new());
        for &(name, lies, weight) in all {
            let cgroup = hierarchy.make(name, CpuControl { weight, max_percent: None })?;
            let mut command = own_command()?;
            command.args(["play", name, &vcpus.to_string()]);
            command.args(lies.then_some("--lies")).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = process::spawn(&mut command)?;
            cgroup.take(child.id())?;
            let mut line = String::new();
            let output = child.stdout.take().context("no output of a player")?;
            BufReader::new(output).read_line(&mut line)?;
            let told = serde_json::from_str(&line).with_context(|| format!("{name}: {line:?}"))?;
            vms.0.push(Playing { child, told, cgroup });
        }
        Ok(vms)
    }

    /// Starts a guard that takes them for VMs.
    pub fn guard(&self, setup: &GuestSetup, reserve: u8) -> Result<Guard> {
        let told: Vec<&StandIn> = self.0.iter().map(|player| &player.told).collect();
        let told = serde_json::to_string(&told)?;
        Guard::run(setup, &["guard-players", &reserve.to_string(), &told])
    }

    /// Lets all threads run.
    pub fn go(&mut self) {
        self.0.iter_mut().for_each(|player| player.child.stdin = None);
    }

    /// CPU time of each VM so far.
    pub fn used_ns(&self) -> Result<Vec<u64>> {
        self.0.iter().map(|player| Ok(player.cgroup.used_ns()?)).collect()
    }

    /// How often each thread got a CPU so far, VM by VM.
    pub fn turns(&self) -> Result<Vec<u64>> {
        let threads = self.0.iter().map(|player| &player.told);
        let threads = threads.flat_map(|vm| vm.vcpus.iter().map(|tid| (vm.pid, *tid)));
        let of_thread = |(pid, tid)| -> Result<u64> {
            let path = format!("/proc/{pid}/task/{tid}/schedstat");
            let text = fs::read_to_string(&path).with_context(|| path.clone())?;
            let turns = text.split_whitespace().nth(2).with_context(|| path.clone())?;
            Ok(turns.parse()?)
        };
        threads.map(of_thread).collect()
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        // All at once: until they are gone, those that are left take the CPUs.
        for player in &mut self.0 {
            let _ = player.child.kill();
        }
        for player in &mut self.0 {
            let _ = player.child.wait();
        }
    }
}
