// SPDX-License-Identifier: MIT OR Apache-2.0
//! A soak: VMs start, reboot and die under load, while `reprieve guard` is killed, restarted and
//! switched from policy to policy. Nothing may get stuck, complain or be left behind.
//!
//! Everything that can happen happens once in a round, in an order drawn anew for each. After each
//! event every VM has to get CPU time, guard has to schedule if it was not ended, and no kernel may
//! have complained.

mod complaints;
mod left_behind;

use super::bpf_objects::LeftBehind;
use super::guard::{End, Guard, STATE, progress};
use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use crate::experiments;
use crate::vm::Vm;
use anyhow::{Context as _, Result, bail};
use complaints::HostLog;
use reprieve_guard::Policy;
use reprieve_init::protocol::Workload;
use reprieve_page::output::with_causes;
use serde_json::json;
use std::time::{Duration, Instant};

/// VMs at most, and their size.
const VMS: usize = 4;
const VCPUS: u32 = 2;
const MEMORY_MIB: u64 = 256;

/// Memory of all VMs with their VMMs, MiB.
pub const ALL_MIB: u64 = VMS as u64 * (MEMORY_MIB + 96);

/// Warnings are on the console, too.
const ARGS: &str = "loglevel=5";

/// Between two events, ms.
const PAUSE_MS: std::ops::Range<u64> = 200..2000;

/// The kernel frees eBPF objects a grace period or two after their last user.
const LEFT_LIMIT: Duration = Duration::from_secs(60);

/// A kind of event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    VmStarted,
    VmPoweredOff,
    VmReset,
    VmKilled,
    GuardStarted,
    GuardKilled,
    GuardThrownOut,
    GuardEnded,
    GuardSwitched,
}

/// A round. As many VMs start as end; guard is started again after each end.
const ROUND: [Kind; 9] = [
    Kind::VmStarted,
    Kind::VmStarted,
    Kind::VmReset,
    Kind::VmPoweredOff,
    Kind::VmKilled,
    Kind::GuardKilled,
    Kind::GuardThrownOut,
    Kind::GuardEnded,
    Kind::GuardSwitched,
];

pub fn check(setup: &GuestSetup, length: Duration, seed: Option<u64>) -> Result<Finding> {
    // Short enough to be typed.
    Soak::new(setup, seed.unwrap_or_else(|| fastrand::u64(..1_000_000)))?.run(length)
}

struct Soak<'a> {
    setup: &'a GuestSetup<'a>,
    seed: u64,
    random: fastrand::Rng,
    began: Instant,
    vms: Vec<Vm>,
    /// Consoles of the VMs that run or have just ended, with the number of their known complaints.
    consoles: Vec<(String, usize)>,
    /// VMs so far.
    started: usize,
    guard: Option<(Guard, Policy)>,
    host_log: HostLog,
    left_behind: LeftBehind,
    events: u64,
    failures: Vec<String>,
}

impl<'a> Soak<'a> {
    fn new(setup: &'a GuestSetup<'a>, seed: u64) -> Result<Soak<'a>> {
        let state = std::fs::read_to_string(STATE).unwrap_or_default();
        if state.trim() != "disabled" {
            bail!(
                "sched_ext is {} on this host: take one that has it and no scheduler, as with --host nested",
                if state.is_empty() { "missing" } else { state.trim() }
            );
        }
        left_behind::adopt()?;
        Ok(Soak {
            setup,
            seed,
            random: fastrand::Rng::with_seed(seed),
            began: Instant::now(),
            vms: vec![],
            consoles: vec![],
            started: 0,
            guard: None,
            host_log: HostLog::open().context("/dev/kmsg")?,
            left_behind: LeftBehind::from_now(),
            events: 0,
            failures: vec![],
        })
    }

    fn run(mut self, length: Duration) -> Result<Finding> {
        let mut round = vec![];
        while self.began.elapsed() < length {
            let kind = match round.pop() {
                Some(kind) => kind,
                None => {
                    round = ROUND.to_vec();
                    self.random.shuffle(&mut round);
                    continue;
                }
            };
            self.event(kind)?;
            self.setup.sleep(Duration::from_millis(self.random.u64(PAUSE_MS)))?;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        // Leftovers count of a guard that ends last, as of any other.
        for kind in [Kind::GuardEnded, Kind::VmKilled, Kind::VmPoweredOff] {
            while match kind {
                Kind::GuardEnded => self.guard.is_some(),
                Kind::VmKilled => self.vms.len() > 1,
                _ => !self.vms.is_empty(),
            } {
                self.last(kind)?;
            }
        }
        let mut left = vec![];
        self.setup.wait_until(LEFT_LIMIT, || {
            left = [left_behind::now()?, self.left_behind.now()?].concat();
            Ok(left.is_empty())
        })?;
        self.failures.extend(left.into_iter().map(|what| format!("left behind: {what}")));
        let Soak { seed, events, failures, .. } = self;
        let objects = self.left_behind.made().len();
        let mut text = format!(
            "  {seconds:.0} s, --seed {seed}: {events} events, {objects} eBPF objects made\n"
        );
        failures.iter().for_each(|failure| text += &format!("! {failure}\n"));
        let figures = json!({
            "seed": seed, "seconds": seconds, "events": events, "objects": objects, "failures": failures,
        });
        Ok(Finding::new(Check::Soak, failures.is_empty(), text, figures))
    }

    /// Makes an event happen. One that cannot, for lack of a VM or of room, becomes another.
    fn event(&mut self, kind: Kind) -> Result<()> {
        let kind = match kind {
            Kind::VmStarted if self.vms.len() == VMS => Kind::VmReset,
            Kind::VmReset | Kind::VmPoweredOff | Kind::VmKilled if self.vms.len() < 2 => {
                Kind::VmStarted
            }
            Kind::GuardKilled | Kind::GuardThrownOut | Kind::GuardEnded | Kind::GuardSwitched
                if self.guard.is_none() =>
            {
                Kind::GuardStarted
            }
            kind => kind,
        };
        self.happen(kind, true)
    }

    fn last(&mut self, kind: Kind) -> Result<()> {
        self.happen(kind, false)
    }

    /// `again`: a guard that ends is started again, with another policy.
    fn happen(&mut self, kind: Kind, again: bool) -> Result<()> {
        let (at, under) = (self.began.elapsed(), self.policy());
        let (mut text, done) = match kind {
            Kind::VmStarted => self.start_vm(),
            Kind::VmReset => self.reset_vm(),
            Kind::VmPoweredOff | Kind::VmKilled => self.end_vm(kind),
            Kind::GuardKilled => self.end_guard(End::Kill, again),
            Kind::GuardThrownOut => self.end_guard(End::Kernel, again),
            Kind::GuardStarted | Kind::GuardEnded | Kind::GuardSwitched => {
                self.end_guard(End::Signal, again)
            }
        };
        text += &format!(", under {under}");
        let mut failures = vec![];
        let mut note = |outcome: Result<()>| match outcome {
            Err(_) if self.setup.cancel.is_set() => bail!("interrupted"),
            Err(error) => {
                failures.push(with_causes(&error));
                Ok(())
            }
            Ok(()) => Ok(()),
        };
        note(done)?;
        if let Some((guard, _)) = &mut self.guard {
            let scheduling = guard.statistics().map(drop);
            let gone = scheduling.is_err();
            note(scheduling)?;
            if gone {
                self.guard = None;
            }
        }
        note(progress(self.setup, &self.vms).context("stuck"))?;
        for line in self.host_log.look().context("/dev/kmsg")? {
            failures.push(format!("the host's kernel: {line}"));
        }
        for (name, known) in &mut self.consoles {
            let lines = complaints::of(&self.setup.console(name)?);
            for line in lines.iter().skip(*known) {
                failures.push(format!("{name}'s kernel: {line}"));
            }
            *known = lines.len();
        }
        self.consoles.retain(|(name, _)| self.vms.iter().any(|vm| vm.name == *name));
        let seconds = at.as_secs_f64();
        self.setup.progress.notice(&format!("{seconds:7.1} s  {text}"));
        for failure in failures {
            let failure = format!("{seconds:.1} s, {text}: {failure}");
            self.setup.progress.notice(&format!("! {failure}"));
            self.failures.push(failure);
        }
        self.events += 1;
        Ok(())
    }

    fn policy(&self) -> &'static str {
        self.guard.as_ref().map_or("the stock scheduler", |(_, policy)| policy.name())
    }

    fn start_vm(&mut self) -> (String, Result<()>) {
        let loads = [
            Workload::FileChurn { workers: VCPUS },
            Workload::Hog { threads: VCPUS },
            experiments::bursty(VCPUS, self.seed),
        ];
        let load = loads[self.started % loads.len()].clone();
        self.started += 1;
        let name = format!("vm{}", self.started);
        let started = || -> Result<Vm> {
            let mut vm = self.setup.boot(&name, VCPUS, MEMORY_MIB, ARGS)?;
            self.setup.start(&mut vm, load)?;
            Ok(vm)
        };
        let started = started().map(|vm| self.vms.push(vm));
        let text = format!("{name} started");
        self.consoles.push((name, 0));
        (text, started)
    }

    /// Any of the VMs.
    fn pick(&mut self) -> usize {
        self.random.usize(0..self.vms.len())
    }

    fn reset_vm(&mut self) -> (String, Result<()>) {
        let index = self.pick();
        let mut vm = self.vms.swap_remove(index);
        let text = format!("{} reset under load", vm.name);
        let churn = Workload::FileChurn { workers: VCPUS };
        let reset = self.setup.reset(&mut vm).and_then(|()| self.setup.start(&mut vm, churn));
        // A VM that does not come back is gone.
        if reset.is_ok() {
            self.vms.push(vm);
        }
        (text, reset)
    }

    fn end_vm(&mut self, kind: Kind) -> (String, Result<()>) {
        let index = self.pick();
        let mut vm = self.vms.swap_remove(index);
        let name = vm.name.clone();
        if kind == Kind::VmKilled {
            drop(vm);
            return (format!("{name} killed under load"), Ok(()));
        }
        // The VM has to answer first.
        let answered = self.setup.read(&mut vm, "/proc/uptime").map(drop);
        vm.shut_down(self.setup.cancel);
        (format!("{name} powered off"), answered)
    }

    fn end_guard(&mut self, end: End, again: bool) -> (String, Result<()>) {
        let mut text = String::new();
        let mut outcome = Ok(());
        let before = self.guard.take().map(|(guard, policy)| {
            text = format!("guard {}", end.name());
            outcome = guard.end(self.setup, end);
            policy
        });
        if !again {
            return (text, outcome);
        }
        let others: Vec<Policy> =
            Policy::ALL.into_iter().filter(|policy| Some(*policy) != before).collect();
        let policy = others[self.random.usize(0..others.len())];
        let then = if text.is_empty() { "guard started" } else { ", started again" };
        text += &format!("{then} with {}", policy.name());
        let started = outcome.and_then(|()| {
            let guard = Guard::start(self.setup, policy)?;
            self.left_behind.note(&guard.pid().to_string()).context("guard's descriptors")?;
            self.guard = Some((guard, policy));
            Ok(())
        });
        (text, started)
    }
}
