// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that play VMs: their threads are the vCPUs, their memory the guests'.

use super::guest::Guest;
use crate::host_scheduler::own_command;
use crate::plan::CpuControl;
use crate::process;
use crate::vm::cgroup::{Cgroup, Cgroups};
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use reprieve_page::output::print;
use reprieve_watch::{StandIn, StandIns};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

/// Bytes of a thread's stack: there are many.
const STACK: usize = 64 << 10;

#[derive(Args, Clone)]
pub struct PlayArgs {
    #[arg(long)]
    pub name: String,
    #[arg(long)]
    pub vcpus: usize,
    #[arg(long)]
    pub lies: bool,
}

/// Prints what guard has to know, and runs from the first line of standard input to its end.
pub fn main(args: &PlayArgs) -> Result<()> {
    let guest = Guest::new(args.vcpus.max(1), args.lies);
    let begin = Arc::new(Barrier::new(guest.cpus + 1));
    let (send, tids) = channel();
    for cpu in 0..guest.cpus {
        let (begin, send, lies) = (begin.clone(), send.clone(), args.lies);
        let thread = std::thread::Builder::new().name(format!("CPU {cpu}")).stack_size(STACK);
        thread.spawn(move || {
            let _ = send.send((cpu, rustix::thread::gettid().as_raw_nonzero().get() as u32));
            begin.wait();
            guest.live(cpu, lies)
        })?;
    }
    drop(send);
    let mut found: Vec<(usize, u32)> = tids.iter().take(guest.cpus).collect();
    found.sort_unstable();
    let tids: Vec<u32> = found.into_iter().map(|(_, tid)| tid).collect();
    print(&(serde_json::to_string(&guest.describe(&args.name, &tids))? + "\n"))?;
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    if input.read_line(&mut line)? > 0 {
        begin.wait();
        input.read_to_string(&mut line)?;
    }
    std::process::exit(0);
}

/// A process, killed when this is dropped.
struct Player {
    child: Child,
    input: Option<ChildStdin>,
    told: StandIn,
}

impl Player {
    /// Starts it; its threads wait.
    fn start(args: &PlayArgs) -> Result<Player> {
        let mut command = own_command().map_err(anyhow::Error::msg)?;
        command.args(["lab", "play", "--name", &args.name]);
        command.args(["--vcpus", &args.vcpus.to_string()]);
        command.args(args.lies.then_some("--lies")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::spawn(&mut command)?;
        let output = child.stdout.take().ok_or_else(|| anyhow!("no output of {}", args.name))?;
        let input = child.stdin.take();
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let told: Result<StandIn> =
            read.map_err(anyhow::Error::from).and_then(|_| Ok(serde_json::from_str(&line)?));
        // Else the child ends, since its input does.
        let told = told.with_context(|| format!("{} said {line:?}", args.name))?;
        Ok(Player { child, input, told })
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Players, each in a cgroup of its weight.
pub struct Vms {
    players: Vec<Player>,
    cgroups: Vec<Cgroup>,
    directory: tempfile::TempDir,
}

impl Vms {
    pub fn start(all: impl IntoIterator<Item = (PlayArgs, u32)>) -> Result<Vms> {
        let hierarchy = Cgroups::open(false)?;
        let directory = tempfile::tempdir().context("directory of the description")?;
        let mut vms = Vms { players: Vec::new(), cgroups: Vec::new(), directory };
        for (args, weight) in all {
            let player = Player::start(&args)?;
            let cgroup = hierarchy.make(&args.name, CpuControl { weight, max_percent: None })?;
            cgroup.take(player.told.pid)?;
            vms.players.push(player);
            vms.cgroups.push(cgroup);
        }
        let told = vms.players.iter().map(|player| player.told.clone()).collect();
        std::fs::write(vms.file(), serde_json::to_string(&StandIns { vms: told })?)?;
        Ok(vms)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("stand-ins.json")
    }

    /// The options with which guard takes them for VMs.
    pub fn options(&self) -> Result<[String; 2]> {
        let file = self.file().into_os_string().into_string();
        let file = file.map_err(|file| anyhow!("{}: not UTF-8", Path::new(&file).display()))?;
        Ok(["--stand-ins".into(), file])
    }

    pub fn pids(&self) -> Vec<u32> {
        self.players.iter().map(|player| player.told.pid).collect()
    }

    /// Lets all threads run.
    pub fn go(&mut self) -> Result<()> {
        for Player { input, told, .. } in &mut self.players {
            let input = input.as_mut().ok_or_else(|| anyhow!("no input of {}", told.name))?;
            input.write_all(b"go\n").with_context(|| format!("starting {}", told.name))?;
        }
        Ok(())
    }

    /// CPU time of each VM so far.
    pub fn used_ns(&self) -> Result<Vec<u64>> {
        self.cgroups.iter().map(|cgroup| Ok(cgroup.used_ns()?)).collect()
    }

    /// How often each thread of each VM got a CPU so far.
    pub fn turns(&self) -> Result<Vec<Vec<u64>>> {
        let of_thread = |pid: u32, tid: u32| -> Result<u64> {
            let path = format!("/proc/{pid}/task/{tid}/schedstat");
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let turns = text.split_whitespace().nth(2);
            Ok(turns.ok_or_else(|| anyhow!("{path}: {text:?}"))?.parse()?)
        };
        let of_vm = |vm: &StandIn| vm.vcpus.iter().map(|v| of_thread(vm.pid, v.tid)).collect();
        self.players.iter().map(|player| of_vm(&player.told)).collect()
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        // All at once: until they are gone, those that are left take the CPUs.
        for player in &mut self.players {
            let _ = player.child.kill();
        }
        // Before their cgroups.
        self.players.clear();
    }
}
