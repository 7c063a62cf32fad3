// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out a plan with VMs that run directly on this machine.
//!
//! All VMs of the plan are booted once and stay; a phase is measured with one guest under test running and everything that does not
//! belong to the phase paused. The order is: boots; one discarded warm-up per guest under test (the first seconds after boot are JIT
//! translation under TCG and cold caches anywhere); then per repeat and variant the baseline and the overcommit phase. Odd repeats go
//! through all that backwards, so that slow drift of the machine and of the guests (uptime, fragmentation) hits all of them alike.
//!
//! When a VM dies in the middle, all are booted again and the run goes on with the phase that was lost.

use crate::error::{Error, Result};
use crate::images::{GuestImage, ImageSet};
use crate::outside::{Outside, Totals, Watcher, Watching};
use crate::plan::{Plan, SCHEMA, Scenario, Vm as VmPlan};
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::{HostInfo, HostPhase, Record};
use crate::vm::{Accel, Config, SchedCounters, Threads, Vm};
use reprieve_init::protocol::{Command, Event};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Boots of one VM that are tried before the run fails, and boots of all VMs when one died later.
const TRIES: u32 = 3;

/// Pause between starting the VMs of a phase and its time 0.
const SETTLE: Duration = Duration::from_millis(500);

/// How long it may take until the guest under test is seen from outside: under a second on real hardware, many in an emulated lab host.
const WATCH_LIMIT: Duration = Duration::from_secs(60);

/// What a boot takes in a lab host under TCG; elsewhere it is less.
const BOOT_ESTIMATE: Duration = Duration::from_secs(6);

/// Where the VMs run and what may disturb the run.
pub struct Context<'a> {
    pub images: &'a ImageSet,
    pub accel: Accel,
    /// Directory for console logs.
    pub logs: &'a Path,
    pub boot_limit: Duration,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// Looks into the guest under test; `None`: nobody does.
    pub watcher: Option<&'a dyn Watcher>,
}

/// Runs `plan` from phase `from` on (0 for all of it), handing each record to `sink` as it comes; the last is [`Record::End`] whatever
/// happens.
pub fn execute(
    plan: &Plan,
    from: u32,
    host: HostInfo,
    context: &Context,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    if plan.schema != SCHEMA {
        return Err(Error::Usage(format!(
            "the plan has schema {}, this program {SCHEMA}: make it with this version",
            plan.schema
        )));
    }
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    sink(Record::Run { plan: Box::new(plan.clone()), started, host })?;
    let logs = BTreeMap::new();
    let outcome = Run { plan, context, sink, next: from, booting: false, logs }.all();
    let reason = outcome.as_ref().err().map(ToString::to_string);
    let end = sink(Record::End { complete: reason.is_none(), reason });
    outcome.and(end)
}

struct Run<'a> {
    plan: &'a Plan,
    context: &'a Context<'a>,
    sink: &'a mut dyn FnMut(Record) -> Result<()>,
    /// First phase that is not measured yet.
    next: u32,
    /// A VM has not announced itself yet.
    booting: bool,
    /// Console logs so far, by VM.
    logs: BTreeMap<String, u32>,
}

impl<'a> Run<'a> {
    fn all(mut self) -> Result<()> {
        for tried in 1.. {
            self.booting = false;
            match self.attempt() {
                // A boot has been tried again by itself.
                Err(error) if !self.booting && error.is_crash() && tried < TRIES => {
                    let text = format!("all VMs are booted again for phase {}", self.next);
                    self.notice(text, &error)?;
                }
                outcome => return outcome,
            }
        }
        Ok(())
    }

    fn attempt(&mut self) -> Result<()> {
        let plan = self.plan;
        let schedule = schedule(plan);
        self.tell_remaining(schedule.len() as u32 - self.next, self.ahead());
        let mut competitors = Vec::new();
        for vm in &plan.competitors {
            let variant = &plan.variants[0];
            let image = self.image(&variant.guest_kernel)?;
            let mut vm = self.boot(vm, &vm.name, image, "", None)?;
            self.quiet_call(&mut vm, &Command::Start)?;
            vm.pause()?;
            competitors.push(vm);
        }
        let mut subjects = Vec::new();
        for (index, variant) in plan.variants.iter().enumerate() {
            let image = self.image(&variant.guest_kernel)?;
            let name = match plan.variants.len() {
                1 => plan.subject.name.clone(),
                _ => format!("{}-{}", plan.subject.name, index + 1),
            };
            let args = variant.kernel_args();
            let mut vm = self.boot(&plan.subject, &name, image, &args, Some(index))?;
            self.check_preempt(&vm, variant.preempt.as_deref())?;
            vm.pause()?;
            subjects.push(vm);
        }
        for vm in &mut subjects {
            self.warm_up(vm, &mut competitors)?;
        }
        for (phase, &(repeat, variant, scenario)) in schedule.iter().enumerate() {
            let phase = phase as u32;
            if phase < self.next {
                continue;
            }
            (self.sink)(Record::PhaseStart { phase, variant, repeat, scenario })?;
            self.tell_remaining(schedule.len() as u32 - phase, Duration::ZERO);
            self.measure(phase, variant, scenario, &mut subjects, &mut competitors)?;
            self.next = phase + 1;
        }
        for vm in subjects.into_iter().chain(competitors) {
            vm.shut_down();
        }
        Ok(())
    }

    fn image(&self, kernel: &str) -> Result<&'a GuestImage> {
        self.context.images.guests.get(kernel).ok_or_else(|| {
            Error::missing(
                format!("the image of guest kernel {kernel}"),
                "run `reprieve lab images`",
            )
        })
    }

    fn boot(
        &mut self,
        vm: &VmPlan,
        name: &str,
        image: &GuestImage,
        args: &str,
        variant: Option<usize>,
    ) -> Result<Vm> {
        let context = self.context;
        let mut tried = 1;
        self.booting = true;
        let mut booted = loop {
            context
                .progress
                .step(&format!("booting {name} ({}, {} vCPUs)", image.release, vm.vcpus));
            let log = self.logs.entry(name.into()).or_default();
            *log += 1;
            let config = Config {
                name: name.into(),
                accel: context.accel,
                cpu: None,
                vcpus: vm.vcpus,
                memory_mib: vm.memory_mib,
                kernel: image.kernel.clone(),
                initrd: image.initrd.clone(),
                args: args.into(),
                console: context.logs.join(format!("{name}.{log}.log")),
            };
            match Vm::boot(&config, &context.images.qemu, context.boot_limit, context.cancel) {
                Ok(vm) => break vm,
                Err(error) if error.is_crash() && tried < TRIES => {
                    self.notice(format!("boot {tried} of {name} failed, trying again"), &error)?;
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        };
        self.booting = false;
        booted.threads().pin(&vm.pin, &vm.pin_other)?;
        let boot_ms = booted.boot_time.as_millis() as u64;
        let info = booted.info.clone();
        (self.sink)(Record::Guest { vm: name.into(), variant, info, boot_ms })?;
        let measure = variant.map(|_| self.plan.measure.clone());
        let prepare = Command::Prepare { workload: vm.workload.clone(), measure };
        self.quiet_call(&mut booted, &prepare)?;
        Ok(booted)
    }

    /// A kernel that does not know a preemption model silently takes another: that would be a wrong label on a figure.
    fn check_preempt(&mut self, vm: &Vm, asked: Option<&str>) -> Result<()> {
        match (asked, vm.info.preempt.as_deref()) {
            (Some(asked), Some(got)) if asked != got => Err(Error::Usage(format!(
                "guest kernel {} has no preemption model {asked} (it runs as {got}): leave --preempt {asked} out or take another kernel",
                vm.info.kernel
            ))),
            (Some(asked), None) => {
                let name = &vm.name;
                let text = format!("{name} does not tell whether preempt={asked} took effect");
                self.context.progress.notice(&text);
                (self.sink)(Record::Notice { text })
            }
            _ => Ok(()),
        }
    }

    fn warm_up(&mut self, vm: &mut Vm, competitors: &mut [Vm]) -> Result<()> {
        let length = Duration::from_millis(self.plan.warmup_ms);
        if length.is_zero() {
            return Ok(());
        }
        self.context.progress.timed(&format!("warm-up of {} (discarded)", vm.name), length);
        vm.resume()?;
        for competitor in competitors.iter_mut() {
            competitor.resume()?;
        }
        let command = Command::Phase { phase: u32::MAX, duration_ms: self.plan.warmup_ms };
        let limit = phase_limit(length);
        vm.call(&command, limit, self.context.cancel, |_| Ok(()))?;
        pause_all(competitors)?;
        vm.pause()
    }

    fn measure(
        &mut self,
        phase: u32,
        variant: usize,
        scenario: Scenario,
        subjects: &mut [Vm],
        competitors: &mut [Vm],
    ) -> Result<()> {
        let plan = self.plan;
        let what = match scenario {
            Scenario::Baseline => "alone",
            Scenario::Overcommit => "overcommitted",
        };
        let name = &subjects[variant].name;
        let length = Duration::from_millis(plan.phase_ms);
        self.context.progress.timed(&format!("{name} {what}"), length);
        subjects[variant].resume()?;
        if scenario == Scenario::Overcommit {
            for vm in competitors.iter_mut() {
                vm.resume()?;
            }
        }
        self.context.cancel.sleep(SETTLE)?;

        let mut view = View::open(self.context, subjects[variant].threads().pid());
        let observer = Observer::new(variant, subjects, competitors);
        let mut before = None;
        let mut after = None;
        let sink = &mut self.sink;
        let command = Command::Phase { phase, duration_ms: plan.phase_ms };
        let limit = phase_limit(length);
        let done = subjects[variant].call(&command, limit, self.context.cancel, |event| {
            match event {
                Event::PhaseStarted { .. } => {
                    before = Some(observer.read());
                    view.begin();
                }
                Event::LoadStopped { .. } => {
                    after = Some(observer.read());
                    view.end();
                    // The guest has its samples still to send: no need to compete for that.
                    pause_all(competitors)?;
                }
                Event::Sample { sample, .. } => sink(Record::Sample { phase, sample })?,
                Event::Notice { text } => sink(Record::Notice { text })?,
                _ => {}
            }
            Ok(())
        })?;
        subjects[variant].pause()?;
        let (Event::PhaseDone { result, .. }, Some(before), Some(after)) = (done, before, after)
        else {
            return Err(Error::Guest {
                vm: subjects[variant].name.clone(),
                message: "left out a step of the phase".into(),
                detail: String::new(),
                log: None,
            });
        };
        let host = HostPhase { outside: view.close(), ..after.since(&before) };
        (self.sink)(Record::PhaseEnd { phase, result, host })
    }

    /// A command whose events, but for notices, are of no interest.
    fn quiet_call(&mut self, vm: &mut Vm, command: &Command) -> Result<()> {
        let sink = &mut self.sink;
        vm.call(command, Duration::from_secs(300), self.context.cancel, |event| match event {
            Event::Notice { text } => sink(Record::Notice { text }),
            _ => Ok(()),
        })
        .map(drop)
    }

    /// `ahead`: what comes before the phases. Draining and sending add about a fifth to a phase.
    fn tell_remaining(&self, phases: u32, ahead: Duration) {
        let one = (Duration::from_millis(self.plan.phase_ms) + SETTLE).mul_f64(1.2);
        self.context.progress.remaining(ahead + one * phases);
    }

    /// How long boots and warm-ups take.
    fn ahead(&self) -> Duration {
        let (subjects, others) =
            (self.plan.variants.len() as u32, self.plan.competitors.len() as u32);
        BOOT_ESTIMATE * (subjects + others) + Duration::from_millis(self.plan.warmup_ms) * subjects
    }

    /// Tells the user all about `error`, and the report in one line.
    fn notice(&mut self, text: String, error: &Error) -> Result<()> {
        self.context.progress.notice(&format!("{text}: {error}"));
        (self.sink)(Record::Notice { text: format!("{text}: {}", error.brief()) })
    }
}

/// The phases in order: (repeat, variant, scenario).
fn schedule(plan: &Plan) -> Vec<(u32, usize, Scenario)> {
    let mut phases = Vec::new();
    for repeat in 0..plan.repeat {
        let both = [Scenario::Baseline, Scenario::Overcommit];
        let mut round: Vec<_> = (0..plan.variants.len())
            .flat_map(|variant| both.map(|scenario| (repeat, variant, scenario)))
            .collect();
        if repeat % 2 == 1 {
            round.reverse();
        }
        phases.extend(round);
    }
    phases
}

fn pause_all(vms: &mut [Vm]) -> Result<()> {
    vms.iter_mut().try_for_each(Vm::pause)
}

/// How long the guest may take for a phase of `length`: an overcommitted guest gets a fraction of the time, and sends its samples
/// afterwards.
fn phase_limit(length: Duration) -> Duration {
    length * 4 + Duration::from_secs(120)
}

/// The guest under test as it is seen from outside, if anybody looks.
enum View {
    Nobody,
    Blind(String),
    Open { watching: Box<dyn Watching>, before: Option<Totals>, seen: Option<Totals> },
}

impl View {
    fn open(context: &Context, pid: u32) -> View {
        let Some(watcher) = context.watcher else { return View::Nobody };
        match watcher.watch(pid, WATCH_LIMIT, context.cancel) {
            Ok(watching) => View::Open { watching, before: None, seen: None },
            Err(why) => View::Blind(why),
        }
    }

    /// The phase begins.
    fn begin(&mut self) {
        self.note(|totals, before, _| *before = Some(totals));
    }

    /// The phase has ended.
    fn end(&mut self) {
        self.note(|totals, before, seen| *seen = before.take().map(|b| totals.since(&b)));
    }

    fn note(&mut self, keep: impl FnOnce(Totals, &mut Option<Totals>, &mut Option<Totals>)) {
        let View::Open { watching, before, seen } = self else { return };
        match watching.totals() {
            Ok(totals) => keep(totals, before, seen),
            Err(why) => *self = View::Blind(why),
        }
    }

    fn close(self) -> Option<Outside> {
        match self {
            View::Nobody => None,
            View::Blind(why) => Some(Outside::Missing(why)),
            View::Open { seen, .. } => Some(seen.map_or_else(
                || Outside::Missing("the guest left out a step of the phase".into()),
                |totals| Outside::Seen(Box::new(totals)),
            )),
        }
    }
}

/// Reads what the host's scheduler did to the VMs of a phase.
struct Observer {
    subject: Threads,
    all: BTreeMap<String, Threads>,
}

struct Observation {
    at: Instant,
    vcpus: SchedCounters,
    all: BTreeMap<String, SchedCounters>,
}

impl Observer {
    fn new(variant: usize, subjects: &[Vm], competitors: &[Vm]) -> Observer {
        let all = subjects.iter().chain(competitors);
        Observer {
            subject: subjects[variant].threads().clone(),
            all: all.map(|vm| (vm.name.clone(), vm.threads().clone())).collect(),
        }
    }

    fn read(&self) -> Observation {
        Observation {
            at: Instant::now(),
            vcpus: self.subject.vcpu_counters(),
            all: self.all.iter().map(|(name, vm)| (name.clone(), vm.counters())).collect(),
        }
    }
}

impl Observation {
    fn since(&self, before: &Observation) -> HostPhase {
        let vcpus = self.vcpus.since(before.vcpus);
        let ran = |(name, now): (&String, &SchedCounters)| {
            let then = before.all.get(name).copied().unwrap_or_default();
            (name.clone(), now.since(then).run_ns)
        };
        HostPhase {
            vcpu_preemptions: vcpus.preemptions,
            vcpu_wait_ns: vcpus.wait_ns,
            cpu_ns: self.all.iter().map(ran).collect(),
            elapsed_ns: (self.at - before.at).as_nanos() as u64,
            outside: None,
            other_busy: None,
        }
    }
}
