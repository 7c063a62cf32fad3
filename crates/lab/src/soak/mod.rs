// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab soak`: VMs start, reboot and die under load, while `reprieve guard` is killed,
//! restarted and switched from policy to policy. Nothing may get stuck, complain or be left behind.
//!
//! Everything that can happen happens once in a round, in an order drawn anew for each. After each
//! event every VM has to get CPU time, guard has to schedule if it was not ended, and no kernel may
//! have complained.

mod complaints;
mod left_behind;

use super::check::guard::{End, Guard, STATE, progress};
use super::check::guest_setup::GuestSetup;
use crate::args::{DEFAULT_KERNEL, HostArgs};
use crate::experiments;
use crate::host::{Logs, Messages};
use crate::host::{Message, PlanHost, RunContext, log_directory};
use crate::images::{ImageSet, Images};
use crate::limit::scaled;
use crate::policy::Need;
use crate::process::Cancel;
use crate::progress::{Lines, Progress};
use crate::signals::cancel_on_signal;
use crate::vm::{Accel, Vm};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use complaints::HostLog;
use left_behind::LeftBehind;
use reprieve_guard::Policy;
use reprieve_init::protocol::{Command, Workload};
use reprieve_page::output::{print, print_json, with_causes};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// VMs at most, and their size.
const VMS: usize = 4;
const VCPUS: u32 = 2;
const MEMORY_MIB: u64 = 256;

/// Memory of a VM's VMM, MiB.
const VMM_MIB: u64 = 96;

/// Warnings are on the console, too.
const ARGS: &str = "loglevel=5";

/// Between two events, ms.
const PAUSE_MS: std::ops::Range<u64> = 200..2000;

/// The kernel frees eBPF objects a grace period or two after their last user.
const LEFT_LIMIT: Duration = Duration::from_secs(60);

/// In a lab host, for the boots and the end of a soak.
const INSIDE_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args)]
pub struct SoakArgs {
    /// How long, in the time of the VMs' host
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1h")]
    length: Duration,
    /// Seed of the order of events; another one each time, unless it is given
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    host: HostArgs,
    /// Kernel of the guests: deb:VERSION or the path of a vmlinuz
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// In a lab host: its images
    #[arg(long, hide = true)]
    images: Option<String>,
    /// In a lab host: directory for console logs
    #[arg(long, hide = true)]
    logs: Option<PathBuf>,
}

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// An event, and what was wrong after it.
#[derive(Serialize, Deserialize)]
struct Event {
    at_s: f64,
    kind: Kind,
    text: String,
    failures: Vec<String>,
}

/// The result of a soak.
#[derive(Serialize, Deserialize)]
struct Outcome {
    seed: u64,
    /// By the clock of the VMs' host.
    seconds: f64,
    events: Vec<Event>,
    /// eBPF objects that the guards made.
    objects: usize,
    left_behind: Vec<String>,
}

impl Outcome {
    fn failures(&self) -> usize {
        self.events.iter().map(|event| event.failures.len()).sum::<usize>() + self.left_behind.len()
    }

    fn text(&self) -> String {
        let Outcome { seed, seconds, events, objects, left_behind } = self;
        let count = |kinds: &[Kind]| events.iter().filter(|e| kinds.contains(&e.kind)).count();
        let mut text = format!(
            "soak of {seconds:.0} s, seed {seed}: {} events; VMs: {} started, {} reset, {} powered off, {} killed; guard: {} killed, {} thrown out, {} ended, {} switched; {objects} eBPF objects made\n",
            events.len(),
            count(&[Kind::VmStarted]),
            count(&[Kind::VmReset]),
            count(&[Kind::VmPoweredOff]),
            count(&[Kind::VmKilled]),
            count(&[Kind::GuardKilled]),
            count(&[Kind::GuardThrownOut]),
            count(&[Kind::GuardEnded]),
            count(&[Kind::GuardSwitched]),
        );
        for event in events {
            for failure in &event.failures {
                text += &format!("! {:.1} s, {}: {failure}\n", event.at_s, event.text);
            }
        }
        for left in left_behind {
            text += &format!("! left behind: {left}\n");
        }
        let verdict = match self.failures() {
            0 => "passed: nothing stuck, no complaint, nothing left behind".into(),
            n => format!("FAILED: {n} failures"),
        };
        text + &verdict + "\n"
    }
}

pub fn main(args: &SoakArgs) -> Result<()> {
    let cancel = cancel_on_signal()?;
    let seed = args.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        // Short enough to be typed.
        now.as_nanos() as u64 % 1_000_000
    });
    if let Some(images) = &args.images {
        return inside(args, seed, images, &cancel);
    }
    let progress = Lines::default();
    let outcome = outside(args, seed, &progress, &cancel);
    let outcome = outcome?;
    match args.json {
        true => print_json(&outcome)?,
        false => print(&outcome.text())?,
    }
    match outcome.failures() {
        0 => Ok(()),
        n => bail!("{n} failures; --seed {seed} repeats the order of events"),
    }
}

/// Soaks this machine, or a lab host on it.
fn outside(
    args: &SoakArgs,
    seed: u64,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Outcome> {
    let bed = args.host.bed();
    bed.check()?;
    let logs = log_directory()?;
    let images = Images::open(cancel, progress)?;
    let kernel = &args.guest_kernel;
    let set = images.prepare(std::slice::from_ref(kernel), &[])?;
    let context = RunContext {
        set: &set,
        logs: logs.path(),
        progress,
        cancel,
        watch: false,
        limits: false,
        need: Need::SchedExt,
        vms: true,
    };
    let memory = VMS as u64 * (MEMORY_MIB + VMM_MIB);
    let mut plan_host = PlanHost::new(&bed, &images, memory, context)?;
    let outcome = match plan_host.direct() {
        Some(accel) => GuestSetup::new(&set, kernel, accel, logs.path(), progress, cancel)
            .and_then(|setup| Soak::new(&setup, seed)?.run(args.length)),
        None => in_lab_host(args, seed, &mut plan_host),
    };
    plan_host.shut_down();
    let failed = !matches!(&outcome, Ok(outcome) if outcome.failures() == 0);
    if !cancel.is_set() && failed {
        progress.notice(&format!("console logs: {}", logs.keep().display()));
    }
    outcome
}

fn in_lab_host(args: &SoakArgs, seed: u64, plan_host: &mut PlanHost) -> Result<Outcome> {
    let length = format!("{}ms", args.length.as_millis());
    let seed = seed.to_string();
    let command = ["lab", "soak", "--for", &length, "--seed", &seed];
    let command = [&command[..], &["--guest-kernel", &args.guest_kernel]].concat();
    let mut outcome = None;
    let limit = args.length.saturating_mul(2).saturating_add(INSIDE_LIMIT);
    plan_host.run_inside(&command, limit, &mut |value| {
        outcome = Some(value);
        Ok(())
    })?;
    Ok(serde_json::from_value(outcome.context("the lab host sent no result")?)?)
}

fn inside(args: &SoakArgs, seed: u64, images: &str, cancel: &Cancel) -> Result<()> {
    let set: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = Logs::at(args.logs.as_deref().unwrap_or(Path::new("logs")))?;
    let kernel = &args.guest_kernel;
    let setup = GuestSetup::new(&set, kernel, Accel::Kvm, &logs.dir, &Messages, cancel)?;
    let outcome = Soak::new(&setup, seed).and_then(|soak| soak.run(args.length));
    logs.send()?;
    Ok(Messages::send(&Message::Result { value: serde_json::to_value(outcome?)? })?)
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
    events: Vec<Event>,
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
            left_behind: LeftBehind::from_now()?,
            events: vec![],
        })
    }

    fn run(mut self, length: Duration) -> Result<Outcome> {
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
        let Soak { seed, setup, left_behind, events, .. } = self;
        let since = Instant::now();
        let left = loop {
            let left = left_behind.now()?;
            if left.is_empty() || since.elapsed() > scaled(LEFT_LIMIT) {
                break left;
            }
            setup.sleep(Duration::from_millis(200))?;
        };
        let objects = left_behind.made();
        Ok(Outcome { seed, seconds, events, objects, left_behind: left })
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
            let scheduling = guard.check();
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
        let mark = if failures.is_empty() { "" } else { "! " };
        let seconds = at.as_secs_f64();
        self.setup.progress.notice(&format!("{mark}{seconds:7.1} s  {text}"));
        for failure in &failures {
            self.setup.progress.notice(&format!("!            {failure}"));
        }
        self.events.push(Event { at_s: seconds, kind, text, failures });
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
            self.load(&mut vm, load)?;
            Ok(vm)
        };
        let started = started().map(|vm| self.vms.push(vm));
        let text = format!("{name} started");
        self.consoles.push((name, 0));
        (text, started)
    }

    fn load(&self, vm: &mut Vm, load: Workload) -> Result<()> {
        self.setup.prepare(vm, load, None)?;
        self.setup.call(vm, &Command::Start)
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
        let reset = self.setup.reset(&mut vm).and_then(|()| self.load(&mut vm, churn));
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
            let guard = Guard::start(self.setup, policy, &[])?;
            self.left_behind.note(guard.pid())?;
            self.guard = Some((guard, policy));
            Ok(())
        });
        (text, started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(failures: &[&str], left: &[&str]) -> Outcome {
        let event = Event {
            at_s: 1.5,
            kind: Kind::GuardKilled,
            text: "guard killed, started again with full, under plain".into(),
            failures: failures.iter().map(ToString::to_string).collect(),
        };
        let left_behind = left.iter().map(ToString::to_string).collect();
        Outcome { seed: 7, seconds: 60.2, events: vec![event], objects: 12, left_behind }
    }

    #[test]
    fn any_failure_fails_the_soak() {
        let good = outcome(&[], &[]);
        assert_eq!(good.failures(), 0);
        assert!(good.text().ends_with("nothing left behind\n"), "{}", good.text());
        let bad = outcome(&["stuck"], &["process 9 (qemu)"]);
        assert_eq!(bad.failures(), 2);
        for said in
            ["seed 7", "guard: 1 killed", "! 1.5 s, guard killed", "! left behind: process 9"]
        {
            assert!(bad.text().contains(said), "{said}\n{}", bad.text());
        }
        assert!(bad.text().ends_with("FAILED: 2 failures\n"));
    }

    #[test]
    fn a_round_is_complete_in_any_order_and_a_seed_repeats_it() {
        let shuffled = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut round = ROUND;
            random.shuffle(&mut round);
            round
        };
        let orders: Vec<_> = (0..50).map(shuffled).collect();
        for order in &orders {
            for kind in ROUND {
                let count = |all: &[Kind]| all.iter().filter(|k| **k == kind).count();
                assert_eq!(count(order), count(&ROUND), "{kind:?}");
            }
        }
        assert!(orders.iter().any(|order| *order != orders[0]));
        assert_eq!(shuffled(3), orders[3]);
    }
}
