// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that plays a VM: its threads are the vCPUs, its memory the guest's.

use super::super::process::command;
use super::behaviour::Behaviour;
use super::memory::Memory;
use crate::process;
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use reprieve_page::output::print;
use reprieve_watch::StandIn;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};

/// Bytes of a thread's stack: there are many.
const STACK: usize = 64 << 10;

#[derive(Args)]
pub struct PlayArgs {
    #[arg(long)]
    name: String,
    #[arg(long)]
    vcpus: usize,
    #[arg(long, value_enum)]
    behaviour: Behaviour,
}

/// Prints what guard has to know, and runs from the first line of standard input to its end.
pub fn main(args: &PlayArgs) -> Result<()> {
    let memory = Memory::new(args.vcpus.max(1));
    args.behaviour.prepare(&memory);
    let begin = Arc::new(Barrier::new(memory.cpus + 1));
    let (send, tids) = channel();
    for n in 0..memory.cpus {
        let (begin, send, behaviour) = (begin.clone(), send.clone(), args.behaviour);
        let thread = std::thread::Builder::new().name(format!("CPU {n}")).stack_size(STACK);
        thread.spawn(move || {
            // SAFETY: no arguments, always succeeds.
            let tid = unsafe { libc::gettid() } as u32;
            let _ = send.send((n, tid));
            begin.wait();
            behaviour.live(&memory, n);
        })?;
    }
    drop(send);
    let mut found: Vec<(usize, u32)> = tids.iter().take(memory.cpus).collect();
    found.sort_unstable();
    let tids: Vec<u32> = found.into_iter().map(|(_, tid)| tid).collect();
    let mut told = memory.describe(&args.name, &tids, args.behaviour.astray());
    told.kthread_task = args.behaviour.runs_kthread().then(|| memory.first_task());
    print(&(serde_json::to_string(&told)? + "\n"))?;
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    if input.read_line(&mut line)? > 0 {
        begin.wait();
        input.read_to_string(&mut line)?;
    }
    std::process::exit(0);
}

/// The process, killed when this is dropped.
pub struct Player {
    child: Child,
    input: Option<ChildStdin>,
    pub told: StandIn,
}

impl Player {
    /// Starts it; its threads wait.
    pub fn start(name: &str, vcpus: usize, behaviour: Behaviour) -> Result<Player> {
        let mut command = command()?;
        command.args(["lab", "play", "--name", name, "--vcpus", &vcpus.to_string()]);
        command.args(["--behaviour", &behaviour.name()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process::spawn(&mut command)?;
        let output = child.stdout.take().ok_or_else(|| anyhow!("no output of {name}"))?;
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let told = read.map_err(anyhow::Error::from).and_then(|_| Ok(serde_json::from_str(&line)?));
        let input = child.stdin.take();
        match told.with_context(|| format!("{name} said {line:?}")) {
            Ok(told) => Ok(Player { child, input, told }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Lets its threads run.
    pub fn go(&mut self) -> Result<()> {
        let input = self.input.as_mut().ok_or_else(|| anyhow!("no input of {}", self.told.name))?;
        input.write_all(b"go\n").with_context(|| format!("starting {}", self.told.name))
    }

    /// Ends it, without waiting for that.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// How often each thread got a CPU so far.
    pub fn turns(&self) -> Result<Vec<u64>> {
        let turns = |tid: u32| -> Result<u64> {
            let path = format!("/proc/{}/task/{tid}/schedstat", self.told.pid);
            let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
            let turns =
                text.split_whitespace().nth(2).ok_or_else(|| anyhow!("{path}: {text:?}"))?;
            Ok(turns.parse()?)
        };
        self.told.vcpus.iter().map(|vcpu| turns(vcpu.tid)).collect()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}
