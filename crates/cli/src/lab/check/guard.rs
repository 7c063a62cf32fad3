// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` schedules real VMs under each of its policies, and the stock scheduler is back
//! afterwards: after a signal, after the kernel threw guard out, and after a kill that leaves it no
//! time. Nobody is stuck then. Where the kernel has no sched_ext, `guard` says so and changes
//! nothing.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_host::guard::Policy;
use reprieve_lab::limit::scaled;
use reprieve_lab::process;
use reprieve_lab::protocol::{Command, Workload};
use reprieve_lab::vm::Vm;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

pub const STATE: &str = "/sys/kernel/sched_ext/state";
/// "S" ends a scheduler.
const SYSRQ: &str = "/proc/sysrq-trigger";

/// How long anything may take that is waited for here.
const LIMIT: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(50);

/// CPU time that each VM has to get under each policy, and after guard was killed.
const PROGRESS_NS: u64 = 300_000_000;

/// Policies, with or without `--only-vms`, and how each run ends.
const RUNS: [(Policy, bool, End); 6] = [
    (Policy::Plain, false, End::Kernel),
    (Policy::Extend, false, End::Signal),
    (Policy::Quiesce, false, End::Signal),
    (Policy::Rescue, false, End::Signal),
    (Policy::Full, true, End::Signal),
    (Policy::Full, false, End::Kill),
];

pub(super) fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(setup);
    }
    let mut vms = Vec::new();
    let churn = Workload::FileChurn { workers: 2 };
    for (name, workload) in [("churn", churn), ("hog", Workload::Hog { threads: 2 })] {
        let mut vm = setup.boot(name, 2, 256, "")?;
        setup.prepare(&mut vm, workload, None)?;
        setup.call(&mut vm, &Command::Start)?;
        vms.push(vm);
    }
    let mut text = String::new();
    let mut figures = Vec::new();
    for (policy, only_vms, end) in RUNS {
        let only = if only_vms { " --only-vms" } else { "" };
        setup.progress.step(&format!("guard --policy {}{only}", policy.name()));
        let mut guard = Guard::start(setup, policy, only_vms)?;
        let statistics = guard.work(setup, policy, &vms)?;
        guard.end(setup, end)?;
        progress(setup, &vms.iter().collect::<Vec<_>>()).context("after guard ended")?;
        let how = end.name();
        let granted = |what: &str| sum(&statistics, what, "count");
        writeln!(
            text,
            "  {}{only}: {how}, stock scheduler back; {} slices extended, {} to a quiescent point, {} vCPUs rescued",
            policy.name(),
            granted("extended"),
            granted("quiesced"),
            granted("rescued"),
        )?;
        figures.push(statistics);
    }
    for vm in &mut vms {
        setup.read(vm, "/proc/uptime").context("a guest afterwards")?;
    }
    vms.into_iter().for_each(Vm::shut_down);
    Ok(Finding::new(Check::Guard, true, text, json!({ "runs": figures })))
}

fn refusal(setup: &GuestSetup) -> Result<Finding> {
    let mut guard = Guard::spawn(Policy::Plain, false)?;
    let status = process::wait(&mut guard.child, "guard", scaled(LIMIT), setup.cancel)?;
    let said = guard.said();
    let named = said.lines().count() == 1 && said.contains("sched_ext");
    let passed = status.code() == Some(1) && named;
    let text = format!("  this kernel has no sched_ext; guard said: {said}\n");
    Ok(Finding::new(Check::Guard, passed, text, json!({ "refused": said })))
}

/// The sum over all VMs of a number in the statistics.
fn sum(statistics: &Value, what: &str, number: &str) -> u64 {
    let vms = statistics["vms"].as_array().into_iter().flatten();
    vms.filter_map(|vm| vm[what][number].as_u64()).sum()
}

/// Waits until each VM has run for some time.
pub fn progress(setup: &GuestSetup, vms: &[&Vm]) -> Result<()> {
    let ran = || vms.iter().map(|vm| vm.threads().vcpu_counters().run_ns);
    let goal: Vec<u64> = ran().map(|ns| ns + PROGRESS_NS).collect();
    wait(setup, "each VM to run", || {
        Ok(ran().zip(&goal).all(|(ns, &goal)| ns >= goal).then_some(()))
    })
}

fn wait<T>(
    setup: &GuestSetup,
    what: &str,
    mut there: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + scaled(LIMIT);
    loop {
        if let Some(found) = there()? {
            return Ok(found);
        }
        if Instant::now() > end {
            bail!("waited in vain for {what}");
        }
        setup.sleep(NAP)?;
    }
}

/// How this program was started: in a lab host, through a loader of its own.
fn own_command() -> Result<Vec<String>> {
    let line = fs::read_to_string("/proc/self/cmdline")?;
    let mut argv: Vec<String> = line.split_terminator('\0').map(String::from).collect();
    let arguments = std::env::args().count().saturating_sub(1);
    argv.truncate(argv.len().saturating_sub(arguments).max(1));
    if let [program] = &mut argv[..] {
        *program = std::env::current_exe()?.display().to_string();
    }
    Ok(argv)
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
}

impl Guard {
    fn spawn(policy: Policy, only_vms: bool) -> Result<Guard> {
        let argv = own_command()?;
        let mut command = Process::new(&argv[0]);
        command.args(&argv[1..]).args(["guard", "--json", "--interval", "200ms", "--policy"]);
        command.arg(policy.name()).args(only_vms.then_some("--only-vms")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
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
        Ok(Guard { child, lines })
    }

    pub fn start(setup: &GuestSetup, policy: Policy, only_vms: bool) -> Result<Guard> {
        let mut guard = Guard::spawn(policy, only_vms)?;
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

    /// The next line of JSON.
    fn line(&mut self, setup: &GuestSetup) -> Result<Value> {
        let line = wait(setup, "a line of guard", || match self.lines.try_recv() {
            Ok(line) => Ok(Some(line)),
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                bail!("guard ended: {}", self.said())
            }
        })?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until guard has done for the VMs what the policy promises; returns its statistics.
    fn work(&mut self, setup: &GuestSetup, policy: Policy, vms: &[Vm]) -> Result<Value> {
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
            let did = |what, wanted: bool| !wanted || sum(&statistics, what, "count") > 0;
            let worked = cared_for
                && did("extended", policy.extends())
                && did("quiesced", policy == Policy::Quiesce)
                && did("rescued", policy.rescues());
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
        let back = || Ok((fs::read_to_string(STATE)?.trim() == "disabled").then_some(()));
        wait(setup, "the stock scheduler", back)
    }

    /// What it wrote to standard error, to its end.
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
