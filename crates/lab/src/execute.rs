// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes a plan with VMs that run directly on this machine.
//!
//! All VMs of the plan are booted once. During a phase one guest under test runs, with or without
//! the competitors; all other VMs are paused. The order is: the boots; one warm-up per guest under
//! test, which is discarded (in the first seconds after boot caches are cold, and TCG translates
//! code); then, for each repeat and variant, the baseline phase and the overcommit phase, each
//! under the variant's policy, which is put into force for the phase and taken back after it. Odd
//! repeats use the reverse order, so that a slow drift of the machine or of the guests (uptime,
//! fragmentation) affects all phases alike.
//!
//! When a VM dies during a phase, or a part of a competitor's load has ended by the end of one, all
//! are booted again and the run goes on with that phase. The exception is a guest under test that
//! dies of its load, for lack of memory: that is the phase's result, and the run goes on with the
//! next phase.

use crate::calibrate;
use crate::dilation::Dilation;
use crate::error::{Error, Result};
use crate::exits::Exits;
use crate::images::{GuestImage, ImageSet};
use crate::limit::scaled;
use crate::plan::{Plan, SCHEMA, Scenario, VmPlan};
use crate::policy::Policy;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::{BOOTED_AGAIN, Death, HostInfo, HostPhase, Record};
use crate::scheduler::{InForce, Scheduler, Target};
use crate::sleeper::Sleeper;
use crate::vm::{Accel, Config, SchedCounters, Threads, Vm, retry::Attempts};
use crate::watcher::{Totals, WatchOutcome, Watcher, Watching};
use reprieve_init::protocol::{Command, Event};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Wake-ups of a record.
const WAKEUPS: usize = 1_000;

/// How often all VMs are booted after one has died.
const TRIES: u32 = 3;

/// Pause between starting the VMs of a phase and its time 0.
const SETTLE: Duration = Duration::from_millis(500);

/// How long the watcher may take to find the guest under test: under a second on real hardware,
/// many in an emulated lab host.
const WATCH_LIMIT: Duration = Duration::from_secs(60);

/// How long a policy may take to be in force, and to be gone again.
const POLICY_LIMIT: Duration = Duration::from_secs(60);

/// How long a guest may take to prepare its workload.
const PREPARE_LIMIT: Duration = Duration::from_secs(300);

/// Duration of a boot in a lab host under TCG, for the estimate of the time left.
const BOOT_ESTIMATE: Duration = Duration::from_secs(6);

/// How and where to run the VMs.
pub struct Context<'a> {
    pub images: &'a ImageSet,
    pub accel: Accel,
    /// Directory for console logs.
    pub logs: &'a Path,
    pub boot_limit: Duration,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    /// Watches the guest under test, if there is one.
    pub watcher: Option<&'a dyn Watcher>,
    /// Puts policies into force, if the plan has others than the stock scheduler's.
    pub scheduler: Option<&'a dyn Scheduler>,
}

/// Runs `plan` from phase `from` on (0 for all of it), and hands each record to `sink` as it comes.
/// The last is always [`Record::End`].
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
    // A run that goes on after its lab host died has been calibrated in the one before.
    let calibrated = from > 0;
    let run = Run {
        plan,
        context,
        sink,
        next: from,
        booting: false,
        warming: false,
        warm_alone: false,
        started: false,
        began: Cell::new(None),
        calibrated,
        logs,
    };
    let policies = plan.variants.iter().map(|v| &v.policy);
    let outcome = check_policies(policies, context.scheduler).and_then(|()| run.all());
    let reason = outcome.as_ref().err().map(ToString::to_string);
    let end = sink(Record::End { complete: reason.is_none(), reason });
    outcome.and(end)
}

/// Whether this host can do all `policies`.
///
/// # Errors
/// [`Error::Usage`] with the reason why not.
pub fn check_policies<'a>(
    mut policies: impl Iterator<Item = &'a Policy>,
    scheduler: Option<&dyn Scheduler>,
) -> Result<()> {
    policies.try_for_each(|policy| {
        let checked = match scheduler {
            Some(scheduler) => scheduler.check(policy),
            None if *policy == Policy::Eevdf => Ok(()),
            None => Err("this run has nothing that schedules".into()),
        };
        checked.map_err(|why| Error::Usage(format!("--policy {policy}: {why}")))
    })
}

struct Run<'a> {
    plan: &'a Plan,
    context: &'a Context<'a>,
    sink: &'a mut dyn FnMut(Record) -> Result<()>,
    /// The first phase that is not measured yet.
    next: u32,
    /// A VM is being booted.
    booting: bool,
    /// The guest under test warms up.
    warming: bool,
    /// It does so without competition: beside it, it ran out of memory.
    warm_alone: bool,
    /// The record of the start of phase `next` is written.
    started: bool,
    /// The costs of the bed are known.
    calibrated: bool,
    /// When the phase that is being measured began.
    began: Cell<Option<Instant>>,
    /// Number of console logs of each VM.
    logs: BTreeMap<String, u32>,
}

impl<'a> Run<'a> {
    fn all(mut self) -> Result<()> {
        let mut tried = 0;
        loop {
            (self.booting, self.started, tried) = (false, false, tried + 1);
            let was_alone = self.warm_alone;
            self.warming = false;
            self.began.set(None);
            match self.attempt() {
                Err(error) if self.is_result(&error) => {
                    self.died(&error)?;
                    if self.next == schedule(self.plan).len() as u32 {
                        return Ok(());
                    }
                    // Not a failure, so all tries are left for those.
                    tried -= 1;
                }
                // No result: the warm-up belongs to no policy. Nor a failure of the bed.
                Err(error) if self.warming && !was_alone && error.out_of_memory().is_some() => {
                    self.warm_alone = true;
                    self.notice("the guest warms up alone from now on".into(), &error)?;
                    tried -= 1;
                }
                // `boot` has tried a failed boot again already.
                Err(error) if !self.booting && error.is_crash() && tried < TRIES => {
                    let text = format!("all VMs are {BOOTED_AGAIN} for phase {}", self.next);
                    self.notice(text, &error)?;
                }
                outcome => return outcome,
            }
        }
    }

    /// Whether `error` says that the guest under test died in a phase, or before one where that
    /// counts, for lack of memory.
    fn is_result(&self, error: &Error) -> bool {
        let (Error::Died { vm, .. } | Error::Guest { vm, .. }) = error else { return false };
        let subject = self.plan.competitors.iter().all(|other| other.name != *vm);
        let counts = self.began.get().is_some() || self.plan.boot_counts;
        subject && counts && error.out_of_memory().is_some()
    }

    /// The guest under test died of its load: the result of the phase.
    fn died(&mut self, error: &Error) -> Result<()> {
        let after = self.began.get().map(|began| began.elapsed()).unwrap_or_default();
        if !self.started {
            let (repeat, variant, scenario) = schedule(self.plan)[self.next as usize];
            (self.sink)(Record::PhaseStart { phase: self.next, variant, repeat, scenario })?;
        }
        let line = error.out_of_memory().unwrap_or_default().trim().to_string();
        let (phase, seconds) = (self.next, after.as_secs_f64());
        let text = format!("phase {phase}: the guest ran out of memory after {seconds:.1} s");
        let log = error.log().map(Path::to_path_buf);
        self.show(&text, error);
        let death = Death { after_ns: after.as_nanos() as u64, line, log };
        (self.sink)(Record::PhaseDied { phase, death })?;
        self.next += 1;
        Ok(())
    }

    fn attempt(&mut self) -> Result<()> {
        let plan = self.plan;
        let schedule = schedule(plan);
        if let Some(per_cpu) = plan.subject.workload.on_host() {
            return self.on_host(per_cpu);
        }
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
        let mut subjects: Vec<Vm> = Vec::new();
        // The VM of each variant.
        let mut places: Vec<usize> = Vec::new();
        let guests = plan.guests();
        for (index, variant) in plan.variants.iter().enumerate() {
            if guests[index] != index {
                places.push(places[guests[index]]);
                continue;
            }
            places.push(subjects.len());
            let image = self.image(&variant.guest_kernel)?;
            let name = match guests.iter().all(|&guest| guest == 0) {
                true => plan.subject.name.clone(),
                false => format!("{}-{}", plan.subject.name, subjects.len() + 1),
            };
            let args = variant.kernel_args();
            let mut vm = self.boot(&plan.subject, &name, image, &args, Some(index))?;
            self.check_preempt(&vm, variant.preempt.as_deref())?;
            vm.pause()?;
            subjects.push(vm);
        }
        if let Some(vm) = subjects.first_mut().filter(|_| !self.calibrated) {
            self.calibrate(vm)?;
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
            self.started = true;
            self.tell_remaining(schedule.len() as u32 - phase, Duration::ZERO);
            let place = places[variant];
            self.measure(phase, variant, place, scenario, &mut subjects, &mut competitors)?;
            (self.next, self.started) = (phase + 1, false);
        }
        for vm in subjects.into_iter().chain(competitors) {
            vm.shut_down(self.context.cancel);
        }
        Ok(())
    }

    /// A plan without a VM: threads of this host.
    fn on_host(&mut self, per_cpu: u32) -> Result<()> {
        let context = self.context;
        let scheduler = context
            .scheduler
            .ok_or_else(|| Error::Other("this run has nothing that runs threads".into()))?;
        let length = Duration::from_millis(self.plan.phase_ms);
        let schedule = schedule(self.plan);
        for (phase, &(repeat, variant, scenario)) in schedule.iter().enumerate() {
            let phase = phase as u32;
            if phase < self.next {
                continue;
            }
            (self.sink)(Record::PhaseStart { phase, variant, repeat, scenario })?;
            self.tell_remaining(schedule.len() as u32 - phase, Duration::ZERO);
            let policy = &self.plan.variants[variant].policy;
            context.progress.timed(&what("threads", scenario, policy), length);
            let in_force = self.apply(policy, Target { pid: std::process::id(), vcpus: &[] })?;
            let threads = if scenario == Scenario::Baseline { 1 } else { per_cpu };
            let begun = Instant::now();
            let result = scheduler.threads(threads, length, context.cancel)?;
            let elapsed_ns = begun.elapsed().as_nanos() as u64;
            let host = HostPhase {
                policy: self.end(policy, in_force)?,
                elapsed_ns,
                ..HostPhase::default()
            };
            (self.sink)(Record::PhaseEnd { phase, result, host })?;
            self.next = phase + 1;
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
        let mut attempts = Attempts::new(context.boot_limit);
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
                dilation: Dilation::NONE,
                cpu: None,
                vcpus: vm.vcpus,
                spare_vcpus: 0,
                memory_mib: vm.memory_mib,
                kernel: image.kernel.clone(),
                initrd: image.initrd.clone(),
                args: args.into(),
                console: context.logs.join(format!("{name}.{log}.log")),
                region: vm.workload.needs_region(),
            };
            match Vm::boot(&config, &context.images.qemu, attempts.limit(), context.cancel) {
                Ok(vm) => break vm,
                Err(error) if self.is_result(&error) => return Err(error),
                Err(error) => {
                    let error = attempts.again(error)?;
                    let tried = attempts.failed();
                    self.notice(format!("boot {tried} of {name} failed, trying again"), &error)?;
                }
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

    /// A kernel that does not have a preemption model silently uses another: figures would get a
    /// wrong label.
    fn check_preempt(&mut self, vm: &Vm, asked: Option<&str>) -> Result<()> {
        match (asked, vm.info.preempt.as_deref()) {
            (Some(asked), Some(got)) if asked != got => Err(Error::Usage(format!(
                "guest kernel {} has no preemption model {asked} (it runs as {got}): leave --preempt {asked} out or take another kernel",
                vm.info.kernel
            ))),
            (Some(asked), None) => {
                let name = &vm.name;
                let text = format!("{name} does not show whether preempt={asked} took effect");
                self.context.progress.notice(&text);
                (self.sink)(Record::Notice { text })
            }
            _ => Ok(()),
        }
    }

    /// Measures what the bed costs, once for a run. A guest whose init cannot is no reason to fail.
    fn calibrate(&mut self, vm: &mut Vm) -> Result<()> {
        self.context.progress.timed("calibrating", calibrate::ESTIMATE);
        vm.resume()?;
        let (accel, pin) = (self.context.accel, &self.plan.subject.pin);
        match calibrate::measure(vm, accel, pin, self.context.cancel) {
            Ok(costs) => (self.sink)(Record::Costs { costs })?,
            Err(error @ Error::Guest { .. }) => self.notice("not calibrated".into(), &error)?,
            Err(error) => return Err(error),
        }
        self.calibrated = true;
        vm.pause()
    }

    fn warm_up(&mut self, vm: &mut Vm, competitors: &mut [Vm]) -> Result<()> {
        let length = Duration::from_millis(self.plan.warmup_ms);
        if length.is_zero() {
            return Ok(());
        }
        self.context.progress.timed(&format!("warm-up of {} (discarded)", vm.name), length);
        self.warming = true;
        vm.resume()?;
        let beside = if self.warm_alone { &mut [] } else { competitors };
        beside.iter_mut().try_for_each(Vm::resume)?;
        let command = Command::Phase { phase: u32::MAX, duration_ms: self.plan.warmup_ms };
        let limit = phase_limit(length);
        vm.call(&command, limit, self.context.cancel, |_| Ok(()))?;
        pause_all(beside)?;
        vm.pause()?;
        self.warming = false;
        self.check(beside, self.plan.warmup_ms)
    }

    /// Whether all of the competition was there, after `ran_ms` of it. A VM whose load has ended is
    /// as good as dead, since the load is started only once.
    fn check(&mut self, competitors: &mut [Vm], ran_ms: u64) -> Result<()> {
        for vm in competitors {
            vm.resume()?;
            self.quiet_call(vm, &Command::Check { ran_ms }).map_err(Error::into_death)?;
            vm.pause()?;
        }
        Ok(())
    }

    fn measure(
        &mut self,
        phase: u32,
        variant: usize,
        place: usize,
        scenario: Scenario,
        subjects: &mut [Vm],
        competitors: &mut [Vm],
    ) -> Result<()> {
        let policy = &self.plan.variants[variant].policy;
        let length = Duration::from_millis(self.plan.phase_ms);
        self.context.progress.timed(&what(&subjects[place].name, scenario, policy), length);
        subjects[place].resume()?;
        let threads = subjects[place].threads();
        let target = Target { pid: threads.pid(), vcpus: threads.vcpus() };
        // Before there is competition: the kernel verifies guard's program for seconds.
        let in_force = self.apply(policy, target)?;
        if scenario == Scenario::Overcommit {
            competitors.iter_mut().try_for_each(Vm::resume)?;
        }
        self.context.cancel.sleep(SETTLE)?;
        let mut watch = PhaseWatch::open(self.context, self.plan, subjects[place].threads().pid());
        let sched = SchedReader::new(place, subjects, competitors);
        let mut before = None;
        let mut after = None;
        let (mut sleeper, mut wakeups_ns) = (None, vec![]);
        let interactive = self.plan.interactive;
        let (sink, began) = (&mut self.sink, &self.began);
        let command = Command::Phase { phase, duration_ms: self.plan.phase_ms };
        let limit = phase_limit(length);
        let done = subjects[place].call(&command, limit, self.context.cancel, |event| {
            match event {
                Event::PhaseStarted { .. } => {
                    before = Some(sched.read());
                    began.set(Some(Instant::now()));
                    watch.begin();
                    sleeper = interactive.then(Sleeper::start).transpose()?;
                }
                Event::LoadStopped { .. } => {
                    after = Some(sched.read());
                    watch.end();
                    if let Some(sleeper) = sleeper.take() {
                        wakeups_ns = sleeper.end()?;
                    }
                    // The guest still has to send its samples; nothing must delay that.
                    pause_all(competitors)?;
                }
                Event::Sample { sample, .. } => sink(Record::Sample { phase, sample })?,
                Event::Notice { text } => sink(Record::Notice { text })?,
                _ => {}
            }
            Ok(())
        })?;
        subjects[place].pause()?;
        let policy_says = self.end(policy, in_force)?;
        let (Event::PhaseDone { result, .. }, Some(before), Some(after)) = (done, before, after)
        else {
            return Err(Error::Guest {
                vm: subjects[place].name.clone(),
                message: "did not report every step of the phase".into(),
                detail: String::new(),
                log: None,
            });
        };
        self.began.set(None);
        if scenario == Scenario::Overcommit {
            self.check(competitors, self.plan.phase_ms)?;
        }
        let outside = watch.close();
        let host = HostPhase { outside, policy: policy_says, ..after.since(&before) };
        wakeups(phase, &wakeups_ns).try_for_each(&mut *self.sink)?;
        (self.sink)(Record::PhaseEnd { phase, result, host })
    }

    /// Puts the policy of a phase into force, now that its guest under test runs.
    fn apply(&self, policy: &Policy, target: Target) -> Result<Option<Box<dyn InForce>>> {
        let scheduler = match (policy, self.context.scheduler) {
            (_, Some(scheduler)) => scheduler,
            (Policy::Eevdf, None) => return Ok(None),
            (_, None) => return Err(Error::Other(format!("nothing here schedules by {policy}"))),
        };
        let applied = scheduler.apply(policy, target, scaled(POLICY_LIMIT), self.context.cancel);
        self.context.cancel.check()?;
        applied.map(Some).map_err(|why| Error::Other(format!("policy {policy}: {why}")))
    }

    /// Ends it, and returns what it says about itself.
    fn end(
        &self,
        policy: &Policy,
        in_force: Option<Box<dyn InForce>>,
    ) -> Result<Option<serde_json::Value>> {
        let Some(in_force) = in_force else { return Ok(None) };
        let ended = in_force.end(scaled(POLICY_LIMIT));
        ended.map_err(|why| Error::Other(format!("policy {policy}: {why}")))
    }

    /// Sends a command and ignores its events, except notices.
    fn quiet_call(&mut self, vm: &mut Vm, command: &Command) -> Result<()> {
        let sink = &mut self.sink;
        vm.call(command, scaled(PREPARE_LIMIT), self.context.cancel, |event| match event {
            Event::Notice { text } => sink(Record::Notice { text }),
            _ => Ok(()),
        })
        .map(drop)
    }

    /// `ahead`: the time before the phases. Sending the samples adds about a fifth to a phase.
    fn tell_remaining(&self, phases: u32, ahead: Duration) {
        let one = (Duration::from_millis(self.plan.phase_ms) + SETTLE).mul_f64(1.2);
        self.context.progress.remaining(ahead + one * phases);
    }

    /// Estimated duration of boots and warm-ups.
    fn ahead(&self) -> Duration {
        let guests = self.plan.guests();
        let subjects = guests.iter().enumerate().filter(|(i, guest)| i == *guest).count() as u32;
        let others = self.plan.competitors.len() as u32;
        let calibrate = if self.calibrated { Duration::ZERO } else { calibrate::ESTIMATE };
        calibrate
            + BOOT_ESTIMATE * (subjects + others)
            + Duration::from_millis(self.plan.warmup_ms) * subjects
    }

    /// Shows `error` to the user in full, and records one line of it for the report.
    fn notice(&mut self, text: String, error: &Error) -> Result<()> {
        self.show(&text, error);
        (self.sink)(Record::Notice { text: format!("{text}: {}", error.brief()) })
    }

    /// Shows `error` to the user in full, and keeps the log that it names.
    fn show(&self, text: &str, error: &Error) {
        if let Some(log) = error.log() {
            self.context.progress.keep_log(log);
        }
        self.context.progress.notice(&format!("{text}: {error}"));
    }
}

/// A phase, for the user.
fn what(name: &str, scenario: Scenario, policy: &Policy) -> String {
    let what = match scenario {
        Scenario::Baseline => "alone",
        Scenario::Overcommit => "overcommitted",
    };
    match policy {
        Policy::Eevdf => format!("{name} {what}"),
        policy => format!("{name} {what} under {policy}"),
    }
}

/// The phases in order: (repeat, variant, scenario).
fn schedule(plan: &Plan) -> Vec<(u32, usize, Scenario)> {
    let mut phases = Vec::new();
    for repeat in 0..plan.repeat {
        let mut round: Vec<_> = (0..plan.variants.len())
            .flat_map(|variant| plan.scenarios.iter().map(move |&s| (repeat, variant, s)))
            .collect();
        if repeat % 2 == 1 {
            round.reverse();
        }
        phases.extend(round);
    }
    phases
}

fn wakeups(phase: u32, ns: &[u64]) -> impl Iterator<Item = Record> {
    ns.chunks(WAKEUPS).map(move |ns| Record::Wakeups { phase, ns: ns.to_vec() })
}

fn pause_all(vms: &mut [Vm]) -> Result<()> {
    vms.iter_mut().try_for_each(Vm::pause)
}

/// How long the guest may take for a phase of `length`: an overcommitted guest gets a fraction of
/// the CPU time, and sends its samples after the phase.
fn phase_limit(length: Duration) -> Duration {
    scaled(length * 4 + Duration::from_secs(120))
}

/// The watcher during a phase.
enum PhaseWatch {
    /// The run has no watcher.
    None,
    /// The watcher failed, for this reason.
    Failed(String),
    Watching {
        watching: Box<dyn Watching>,
        before: Option<Box<Totals>>,
        seen: Option<Box<Totals>>,
    },
}

impl PhaseWatch {
    fn open(context: &Context, plan: &Plan, pid: u32) -> PhaseWatch {
        let Some(watcher) = context.watcher else { return PhaseWatch::None };
        match watcher.watch(pid, plan.sample_waits, scaled(WATCH_LIMIT), context.cancel) {
            Ok(watching) => PhaseWatch::Watching { watching, before: None, seen: None },
            Err(why) => PhaseWatch::Failed(why),
        }
    }

    /// At the beginning of the phase.
    fn begin(&mut self) {
        self.note(|totals, before, _| *before = Some(Box::new(totals)));
    }

    /// At the end of the phase.
    fn end(&mut self) {
        self.note(|totals, before, seen| *seen = before.take().map(|b| Box::new(totals.since(&b))));
    }

    fn note(
        &mut self,
        keep: impl FnOnce(Totals, &mut Option<Box<Totals>>, &mut Option<Box<Totals>>),
    ) {
        let PhaseWatch::Watching { watching, before, seen } = self else { return };
        match watching.totals() {
            Ok(totals) => keep(totals, before, seen),
            Err(why) => *self = PhaseWatch::Failed(why),
        }
    }

    fn close(self) -> Option<WatchOutcome> {
        match self {
            PhaseWatch::None => None,
            PhaseWatch::Failed(why) => Some(WatchOutcome::Missing(why)),
            PhaseWatch::Watching { seen, .. } => Some(seen.map_or_else(
                || WatchOutcome::Missing("the guest did not report every step of the phase".into()),
                WatchOutcome::Seen,
            )),
        }
    }
}

/// Reads the host's scheduling counters of the VMs.
struct SchedReader {
    subject: Threads,
    all: BTreeMap<String, Threads>,
}

struct SchedReading {
    at: Instant,
    vcpus: SchedCounters,
    exits: Option<Exits>,
    all: BTreeMap<String, SchedCounters>,
}

impl SchedReader {
    fn new(place: usize, subjects: &[Vm], competitors: &[Vm]) -> SchedReader {
        let all = subjects.iter().chain(competitors);
        SchedReader {
            subject: subjects[place].threads().clone(),
            all: all.map(|vm| (vm.name.clone(), vm.threads().clone())).collect(),
        }
    }

    fn read(&self) -> SchedReading {
        SchedReading {
            at: Instant::now(),
            vcpus: self.subject.vcpu_counters(),
            exits: Exits::of_process(self.subject.pid()),
            all: self.all.iter().map(|(name, vm)| (name.clone(), vm.counters())).collect(),
        }
    }
}

impl SchedReading {
    fn since(&self, before: &SchedReading) -> HostPhase {
        let vcpus = self.vcpus.since(before.vcpus);
        let ran = |(name, now): (&String, &SchedCounters)| {
            let then = before.all.get(name).copied().unwrap_or_default();
            (name.clone(), now.since(then).run_ns)
        };
        HostPhase {
            vcpu_preemptions: vcpus.preemptions,
            vcpu_wait_ns: vcpus.wait_ns,
            exits: self.exits.zip(before.exits).map(|(now, then)| now.since(then)),
            cpu_ns: self.all.iter().map(ran).collect(),
            elapsed_ns: (self.at - before.at).as_nanos() as u64,
            outside: None,
            policy: None,
            other_busy: None,
            wakeups_ns: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;
    use crate::host::Message;
    use crate::images::Qemu;
    use crate::progress::Silent;
    use reprieve_init::protocol::{OUTPUT_MAX, PhaseResult, Workload};

    /// Puts nothing into force, and notes what it is asked for.
    #[derive(Default)]
    struct Asked {
        applied: std::cell::RefCell<Vec<Policy>>,
        /// The check, or the phase from which on, another scheduler is in charge.
        other_at_check: bool,
        other_from: Option<usize>,
    }

    struct Nothing;

    impl InForce for Nothing {
        fn end(self: Box<Self>, _: Duration) -> Result<Option<serde_json::Value>, String> {
            Ok(None)
        }
    }

    impl Scheduler for Asked {
        fn check(&self, _: &Policy) -> Result<(), String> {
            if self.other_at_check { Err("another is in charge".into()) } else { Ok(()) }
        }

        fn apply(
            &self,
            policy: &Policy,
            _: Target,
            _: Duration,
            _: &Cancel,
        ) -> Result<Box<dyn InForce>, String> {
            self.applied.borrow_mut().push(policy.clone());
            match self.other_from {
                Some(from) if self.applied.borrow().len() > from => Err("another came".into()),
                _ => Ok(Box::new(Nothing)),
            }
        }

        fn threads(&self, _: u32, _: Duration, _: &Cancel) -> Result<PhaseResult> {
            Ok(PhaseResult::default())
        }
    }

    /// Runs a plan without VMs under the stock scheduler.
    fn run(scheduler: &Asked) -> Result<()> {
        let mut plan = experiments::calibration("deb:6.12");
        plan.subject.workload = Workload::Threads { per_cpu: 2 };
        plan.repeat = 1;
        let qemu = Qemu { argv: vec![], env: vec![], version: String::new() };
        let context = Context {
            images: &ImageSet { qemu, guests: BTreeMap::new() },
            accel: Accel::Tcg,
            logs: Path::new("."),
            boot_limit: Duration::ZERO,
            progress: &Silent,
            cancel: &Cancel::default(),
            watcher: None,
            scheduler: Some(scheduler),
        };
        execute(&plan, 0, HostInfo::default(), &context, &mut |_| Ok(()))
    }

    #[test]
    fn the_stock_scheduler_is_checked_like_any_other() {
        let good = Asked::default();
        run(&good).unwrap();
        assert_eq!(*good.applied.borrow(), [Policy::Eevdf, Policy::Eevdf]);

        let refused = Asked { other_at_check: true, ..Asked::default() };
        let error = run(&refused).unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("eevdf")), "{error}");
        assert!(refused.applied.borrow().is_empty());

        let error = run(&Asked { other_from: Some(1), ..Asked::default() }).unwrap_err();
        assert!(error.to_string().contains("another came"), "{error}");
    }

    #[test]
    fn wake_ups_of_a_long_phase_come_in_lines_that_a_lab_host_sends_whole() {
        // More than the sleeps of an hour, as late as can be.
        let late = vec![u64::MAX; 1_000_001];
        let mut all = vec![];
        for record in wakeups(3, &late) {
            let message = Message::Record { record: Box::new(record.clone()) };
            assert!(serde_json::to_string(&message).unwrap().len() < OUTPUT_MAX);
            let Record::Wakeups { phase: 3, ns } = record else { panic!("{record:?}") };
            all.extend(ns);
        }
        assert!(all == late);
        assert_eq!(wakeups(3, &[]).count(), 0);
    }
}
