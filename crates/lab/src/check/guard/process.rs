// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve guard` in a process of its own.

use super::super::guest_setup::GuestSetup;
use super::{LIMIT, PROGRESS_NS, STATE, sum, wait};
use crate::host_scheduler::own_command;
use crate::limit::scaled;
use crate::process;
use crate::unit;
use crate::vm::Vm;
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_guard::Policy;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};

/// "S" ends a scheduler.
const SYSRQ: &str = "/proc/sysrq-trigger";

fn stock_is_back(setup: &GuestSetup) -> Result<()> {
    let back = || Ok((fs::read_to_string(STATE)?.trim() == "disabled").then_some(()));
    wait(setup, "the stock scheduler", back)
}

/// How guard ends.
#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Signal,
    Kill,
    Kernel,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            End::Signal => "ended",
            End::Kill => "killed",
            End::Kernel => "thrown out",
        }
    }
}

/// A `reprieve guard` in a process of its own.
pub struct Guard {
    child: Child,
    lines: Receiver<String>,
    /// The reservation on CPU 0 before guard.
    reserved: [String; 2],
}

/// The reservation for sched_ext on CPU 0.
fn reserved() -> [String; 2] {
    ["runtime", "period"].map(|file| {
        let path = format!("/sys/kernel/debug/sched/ext_server/cpu0/{file}");
        fs::read_to_string(path).unwrap_or_default()
    })
}

impl Guard {
    fn spawn(policy: Policy, more: &[&str]) -> Result<Guard> {
        let reserved = reserved();
        let mut command = own_command().map_err(anyhow::Error::msg)?;
        command.args(["guard", "--json", "--interval", "200ms", "--policy"]);
        command.arg(policy.name()).args(more).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        unit::confine(&mut command)?;
        let mut child = process::spawn(&mut command)?;
        let (send, lines) = channel();
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("no output of guard"))?;
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Guard { child, lines, reserved })
    }

    /// Starts it with `more` options, and waits until it schedules.
    pub fn start(setup: &GuestSetup, policy: Policy, more: &[&str]) -> Result<Guard> {
        let mut guard = Guard::spawn(policy, more)?;
        let ready = guard.line(setup)?;
        if ready["event"] != "ready" || ready["policy"] != policy.name() {
            bail!("guard began with {ready}");
        }
        let state = fs::read_to_string(STATE)?;
        if state.trim() != "enabled" {
            bail!("guard is ready, and sched_ext {}", state.trim());
        }
        Ok(guard)
    }

    /// The message of a guard that refuses, and whether that is one line, with status 1.
    pub fn refusal(setup: &GuestSetup, more: &[&str]) -> Result<(String, bool)> {
        let mut guard = Guard::spawn(Policy::Plain, more)?;
        let status = process::wait(&mut guard.child, "guard", scaled(LIMIT), setup.cancel)?;
        let said = guard.said();
        let refused = status.code() == Some(1) && said.lines().count() == 1;
        Ok((said, refused))
    }

    /// The next line of JSON.
    pub fn line(&mut self, setup: &GuestSetup) -> Result<Value> {
        let line = wait(setup, "a line of guard", || match self.lines.try_recv() {
            Ok(line) => Ok(Some(line)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                bail!("guard ended: {}", self.said())
            }
        })?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until guard has done for the VMs what the policy promises; returns its statistics.
    pub fn work(&mut self, setup: &GuestSetup, policy: Policy, vms: &[Vm]) -> Result<Value> {
        let mut last = Value::Null;
        let done = wait(setup, "guard's work", || {
            let statistics = self.line(setup)?;
            let all = statistics["vms"].as_array().cloned().unwrap_or_default();
            let cared_for = vms.iter().all(|vm| {
                let own = all.iter().find(|s| s["pid"] == vm.threads().pid());
                own.is_some_and(|s| {
                    s["readable"] == true && s["on_cpu_ns"].as_u64() >= Some(PROGRESS_NS)
                })
            });
            let did = |what| policy == Policy::Plain || sum(&statistics, what, "count") > 0;
            let worked = cared_for && did("extended") && did("rescued");
            last = statistics;
            Ok(worked.then_some(()))
        });
        done.with_context(|| format!("its last statistics: {last}"))?;
        Ok(last)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still schedules; forgets its statistics so far.
    ///
    /// # Errors
    /// How it ended, or that the kernel no longer has its scheduler.
    pub fn check(&mut self) -> Result<()> {
        while self.lines.try_recv().is_ok() {}
        if let Some(status) = self.child.try_wait()? {
            bail!("guard ended by itself ({status}): {}", self.said());
        }
        let state = fs::read_to_string(STATE)?;
        if state.trim() != "enabled" {
            bail!("guard runs, and sched_ext is {}", state.trim());
        }
        Ok(())
    }

    /// Ends guard, and waits until the stock scheduler is back.
    pub fn end(mut self, setup: &GuestSetup, end: End) -> Result<()> {
        let kill = |signal| {
            // SAFETY: no memory is passed; the child has not been waited for.
            unsafe { libc::kill(self.child.id() as i32, signal) };
        };
        match end {
            End::Signal => kill(libc::SIGINT),
            End::Kill => kill(libc::SIGKILL),
            End::Kernel => fs::write(SYSRQ, "S").context(SYSRQ)?,
        }
        let status = process::wait(&mut self.child, "guard", scaled(LIMIT), setup.cancel)?;
        let said = self.said();
        let right = match end {
            End::Signal => status.success(),
            End::Kill => status.code().is_none(),
            End::Kernel => status.code() == Some(1) && said.contains("stock scheduler is back"),
        };
        if !right {
            bail!("guard, {}, ended with {status}: {said}", end.name());
        }
        stock_is_back(setup)?;
        // After a kill, its supervisor does that.
        let given_back = || Ok((reserved() == self.reserved).then_some(()));
        wait(setup, "what is reserved to be as it was before guard", given_back)
    }

    /// guard's standard error, to its end.
    fn said(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        said.trim().to_owned()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The reader of its output ends with it.
        while !matches!(
            self.lines.recv_timeout(LIMIT),
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)
        ) {}
    }
}
