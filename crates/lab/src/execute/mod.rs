// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes a plan with VMs that run directly on this machine.
//!
//! During a phase one guest under test runs, with or without the competitors; all other VMs are
//! paused. An attempt has three states, each a type that hands its VMs to the next:
//!
//! | state | what happens next |
//! |---|---|
//! | [`Run`] | all VMs boot |
//! | [`Booted`] | the bed's costs are measured; each guest under test warms up, which is discarded: after a boot caches are cold, and TCG translates code |
//! | [`Warm`] | the phases that are left: for each repeat and variant alone, then overcommitted, under the variant's policy |
//!
//! Odd repeats use the reverse order, so that a slow drift of the machine or of the guests (uptime,
//! fragmentation) affects all phases alike, and a policy stays in force over the turn.
//!
//! An attempt that ends early says where ([`Lost`]). When a VM dies, or a part of a competitor's
//! load has ended by the end of a phase, the next attempt goes on with that phase. The exception is
//! a guest under test that dies of its load, for lack of memory: that is the phase's result, and
//! the next attempt goes on with the next phase.

mod force;
mod observe;

use crate::calibrate;
use crate::error::{Error, Result};
use crate::images::{GuestImage, ImageSet};
use crate::limit::scaled;
use crate::plan::{Plan, SCHEMA, Scenario, VmPlan};
use crate::policy::Policy;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::{BOOTED_AGAIN, Death, HostInfo, HostPhase, Record};
use crate::scheduler::{Scheduler, Target};
use crate::vm::cgroup::Cgroups;
use crate::vm::{Accel, Config, Vm};
use force::Force;
use observe::{SchedReader, Watch};
use reprieve_init::protocol::{Command, Event, PhaseResult};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How often all VMs are booted after one has died.
const TRIES: u32 = 3;

/// Pause between starting the VMs of a phase and its time 0.
const SETTLE: Duration = Duration::from_millis(500);

/// How long a guest may take to prepare its workload.
const PREPARE_LIMIT: Duration = Duration::from_secs(300);

/// Durations for the estimate of the time left: a VM's boot before the first is known, and loading
/// guard and the watcher, in boots.
const BOOT_ESTIMATE: Duration = Duration::from_secs(2);
const LOADS: u32 = 1;

/// Sending the samples adds about a fifth to a phase.
const SENDING: f64 = 1.2;

/// How and where to run the VMs.
pub struct Context<'a> {
    pub images: &'a ImageSet,
    pub accel: Accel,
    /// Directory for console logs.
    pub logs: &'a Path,
    pub boot_limit: Duration,
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
    pub scheduler: &'a dyn Scheduler,
    /// Whether the phase that has just ended is to be measured again.
    pub again: &'a dyn Fn() -> Result<bool>,
    /// The costs of the bed are known.
    pub calibrated: bool,
    /// Each VM has a cgroup of its own, also where the plan does not need one.
    pub cgroups: bool,
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
    let mut run = Run::new(plan, from, context, sink);
    let policies = plan.variants.iter().map(|v| &v.policy);
    let outcome = check_policies(policies, context.scheduler).and_then(|()| {
        run.cgroups = cgroups(plan, context.cgroups)?;
        run.all()
    });
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
    scheduler: &dyn Scheduler,
) -> Result<()> {
    policies.try_for_each(|policy| {
        scheduler.check(policy).map_err(|why| Error::Usage(format!("--policy {policy}: {why}")))
    })
}

/// Whether this host has the cgroups that `plan` needs.
///
/// # Errors
/// [`Error::Usage`] with the reason why not.
pub fn check_cgroups(plan: &Plan) -> Result<()> {
    cgroups(plan, false).map(drop)
}

fn cgroups(plan: &Plan, always: bool) -> Result<Option<Cgroups>> {
    (always || plan.needs_cgroups()).then(|| Cgroups::open(plan.limits())).transpose()
}

struct Run<'a> {
    plan: &'a Plan,
    context: &'a Context<'a>,
    sink: &'a mut dyn FnMut(Record) -> Result<()>,
    /// The cgroups of the VMs' host, if VMs have cgroups of their own.
    cgroups: Option<Cgroups>,
    /// The first phase that is not measured yet.
    next: u32,
    warm_up: WarmUp,
    /// The costs of the bed are known.
    calibrated: bool,
    /// How long a VM takes to boot.
    boot: Duration,
    /// Number of console logs of each VM.
    logs: BTreeMap<String, u32>,
}

/// How guests under test warm up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WarmUp {
    /// Beside the competition.
    Beside,
    /// Beside it, one ran out of memory.
    Alone,
}

/// All VMs, booted and paused.
struct Booted<'r, 'a> {
    run: &'r mut Run<'a>,
    vms: Vms,
}

/// The guests under test are warm.
struct Warm<'r, 'a> {
    run: &'r mut Run<'a>,
    // Dropped before the VMs.
    force: Force,
    watch: Watch,
    vms: Vms,
}

struct Vms {
    subjects: Vec<Vm>,
    /// The VM of each variant: an index into `subjects`.
    places: Vec<usize>,
    competitors: Vec<Vm>,
}

/// A phase that is not measured yet.
#[derive(Clone, Copy)]
struct NextPhase {
    phase: u32,
    variant: usize,
    repeat: u32,
    scenario: Scenario,
}

impl NextPhase {
    /// The record that the phase's load begins.
    fn start(self) -> Record {
        let NextPhase { phase, variant, repeat, scenario } = self;
        Record::PhaseStart { phase, variant, repeat, scenario }
    }
}

/// An attempt that ended early.
struct Lost {
    at: At,
    error: Error,
}

enum At {
    /// A VM does not boot; that was tried again.
    Boot,
    WarmUp,
    /// The guest under test had run for so long in a phase.
    Phase(Duration),
    Elsewhere,
}

impl From<Error> for Lost {
    fn from(error: Error) -> Lost {
        Lost { at: At::Elsewhere, error }
    }
}

impl<'a> Run<'a> {
    fn new(
        plan: &'a Plan,
        next: u32,
        context: &'a Context<'a>,
        sink: &'a mut dyn FnMut(Record) -> Result<()>,
    ) -> Run<'a> {
        Run {
            plan,
            context,
            sink,
            cgroups: None,
            next,
            warm_up: WarmUp::Beside,
            calibrated: context.calibrated,
            boot: BOOT_ESTIMATE,
            logs: BTreeMap::new(),
        }
    }

    fn all(mut self) -> Result<()> {
        let mut left = TRIES;
        while let Err(lost) = self.attempt() {
            left = self.after(lost, left)?;
            if self.left() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The consequence of a loss when `left` tries are left: how many there are for the next.
    fn after(&mut self, Lost { at, error }: Lost, left: u32) -> Result<u32> {
        match at {
            // Not a failure, so all tries are left.
            At::Phase(ran) if self.is_result(&error) => self.died(ran, &error).map(|()| left),
            // No result: the warm-up belongs to no policy. Nor a failure of the bed.
            At::WarmUp if self.warm_up == WarmUp::Beside && error.out_of_memory().is_some() => {
                self.warm_up = WarmUp::Alone;
                self.notice("the guest warms up alone from now on".into(), &error)?;
                Ok(left)
            }
            At::Boot => Err(error),
            _ if error.is_crash() && left > 1 => {
                let text = format!("all VMs are {BOOTED_AGAIN} for phase {}", self.next);
                self.notice(text, &error)?;
                Ok(left - 1)
            }
            _ => Err(error),
        }
    }

    /// Whether `error` says that the guest under test died for lack of memory.
    fn is_result(&self, error: &Error) -> bool {
        let (Error::Died { vm, .. } | Error::Guest { vm, .. }) = error else { return false };
        let subject = self.plan.competitors.iter().all(|other| other.name != *vm);
        subject && error.out_of_memory().is_some()
    }

    /// The guest under test died of its load: the result of the phase.
    fn died(&mut self, after: Duration, error: &Error) -> Result<()> {
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

    fn attempt(&mut self) -> Result<(), Lost> {
        self.boot_all()?.warm_up()?.measure()
    }

    /// The next phase.
    fn next_phase(&mut self) -> Option<NextPhase> {
        let phase = self.next;
        let &(repeat, variant, scenario) = schedule(self.plan).get(phase as usize)?;
        self.tell_remaining(0);
        Some(NextPhase { phase, variant, repeat, scenario })
    }

    /// The phase is measured: goes on to the next, unless it is to be measured again.
    fn end_phase(&mut self, phase: u32, result: PhaseResult, host: HostPhase) -> Result<()> {
        (self.sink)(Record::PhaseEnd { phase, result, host })?;
        if !(self.context.again)()? {
            self.next = phase + 1;
        }
        Ok(())
    }

    fn boot_all(&mut self) -> Result<Booted<'_, 'a>, Lost> {
        let plan = self.plan;
        let guests = plan.guests();
        let own = (0..guests.len()).filter(|&index| guests[index] == index);
        let mut boots = (own.clone().count() + plan.competitors.len()) as u32;
        // First: a setting that a guest refuses is known before the other VMs boot.
        let mut subjects: Vec<Vm> = Vec::new();
        let mut places: Vec<usize> = Vec::new();
        for (index, variant) in plan.variants.iter().enumerate() {
            if guests[index] != index {
                places.push(places[guests[index]]);
                continue;
            }
            self.tell_remaining(boots);
            boots -= 1;
            places.push(subjects.len());
            let image = self.image(&variant.guest_kernel)?;
            let name = match own.clone().count() {
                1 => plan.subject.name.clone(),
                _ => format!("{}-{}", plan.subject.name, subjects.len() + 1),
            };
            let args = variant.kernel_args();
            let mut vm = self.boot(&plan.subject, &name, image, &args, Some(index))?;
            self.check_preempt(&vm, variant.preempt.as_deref())?;
            vm.pause()?;
            subjects.push(vm);
        }
        let mut competitors = Vec::new();
        for vm in &plan.competitors {
            self.tell_remaining(boots);
            boots -= 1;
            let image = self.image(&plan.variants[0].guest_kernel)?;
            let mut vm = self.boot(vm, &vm.name, image, "", None)?;
            self.quiet_call(&mut vm, &Command::Start)?;
            vm.pause()?;
            competitors.push(vm);
        }
        Ok(Booted { run: self, vms: Vms { subjects, places, competitors } })
    }

    fn image(&self, kernel: &str) -> Result<&'a GuestImage> {
        self.context.images.guests.get(kernel).ok_or_else(|| {
            let image = format!("the image of guest kernel {kernel}");
            Error::missing(image, "run `reprieve lab fetch`")
        })
    }

    fn boot(
        &mut self,
        vm: &VmPlan,
        name: &str,
        image: &GuestImage,
        args: &str,
        variant: Option<usize>,
    ) -> Result<Vm, Lost> {
        let context = self.context;
        context.progress.step(&format!("booting {name} ({}, {} vCPUs)", image.release, vm.vcpus));
        let before = self.logs.get(name).copied().unwrap_or(0);
        let tried = Cell::new(0);
        let config = |attempt| {
            tried.set(attempt);
            let log = format!("{name}.{}.log", before + attempt);
            Config {
                vcpus: vm.vcpus,
                memory_mib: vm.memory_mib,
                args: args.into(),
                region: vm.workload.needs_region(),
                ..Config::new(name, context.accel, image, context.logs.join(log))
            }
        };
        let (qemu, limit) = (&context.images.qemu, context.boot_limit);
        let booted = Vm::boot_with_retries(config, qemu, limit, context.cancel, |tried, error| {
            self.notice(format!("boot {tried} of {name} failed, trying again"), error)
        });
        self.logs.insert(name.into(), before + tried.get());
        let mut booted = booted.map_err(|error| Lost { at: At::Boot, error })?;
        self.boot = booted.boot_time;
        booted.threads().pin(&vm.pin, &vm.pin_other)?;
        if let Some(cgroups) = &self.cgroups {
            booted.enter(cgroups.make(name, vm.cgroup)?)?;
        }
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

    /// Sends a command and ignores its events, except notices.
    fn quiet_call(&mut self, vm: &mut Vm, command: &Command) -> Result<()> {
        let sink = &mut self.sink;
        vm.call(command, scaled(PREPARE_LIMIT), self.context.cancel, |event| match event {
            Event::Notice { text } => sink(Record::Notice { text }),
            _ => Ok(()),
        })
        .map(drop)
    }

    /// Phases that are not measured yet.
    fn left(&self) -> u32 {
        (schedule(self.plan).len() as u32).saturating_sub(self.next)
    }

    /// `boots`: how many VMs are not booted yet; with 0, the guests are warm.
    fn tell_remaining(&self, boots: u32) {
        let calibrated = boots == 0 || self.calibrated;
        self.context.progress.remaining(left(self.plan, self.next, boots, calibrated, self.boot));
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

impl<'r, 'a> Booted<'r, 'a> {
    /// Calibrates the bed, once for a run, and warms the guests up.
    fn warm_up(mut self) -> Result<Warm<'r, 'a>, Lost> {
        let Vms { subjects, competitors, .. } = &mut self.vms;
        if let Some(vm) = subjects.first_mut().filter(|_| !self.run.calibrated) {
            self.run.calibrate(vm)?;
        }
        let length = Duration::from_millis(self.run.plan.warmup_ms);
        let beside = match self.run.warm_up {
            WarmUp::Beside => &mut competitors[..],
            WarmUp::Alone => &mut [],
        };
        for vm in subjects.iter_mut().filter(|_| !length.is_zero()) {
            let warmed = self.run.warm(vm, beside, length);
            warmed.map_err(|error| Lost { at: At::WarmUp, error })?;
            self.run.check(beside, self.run.plan.warmup_ms)?;
        }
        let Booted { run, vms } = self;
        Ok(Warm { run, force: Force::default(), watch: Watch::default(), vms })
    }
}

impl Run<'_> {
    /// A guest whose init cannot is no reason to fail.
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

    fn warm(&mut self, vm: &mut Vm, beside: &mut [Vm], length: Duration) -> Result<()> {
        self.context.progress.timed(&format!("warm-up of {} (discarded)", vm.name), length);
        vm.resume()?;
        beside.iter_mut().try_for_each(Vm::resume)?;
        let command = Command::Phase { phase: u32::MAX, duration_ms: self.plan.warmup_ms };
        vm.call(&command, phase_limit(length), self.context.cancel, |_| Ok(()))?;
        pause_all(beside)?;
        vm.pause()
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
}

impl Warm<'_, '_> {
    /// Measures the phases that are left.
    fn measure(mut self) -> Result<(), Lost> {
        while let Some(next) = self.run.next_phase() {
            let NextPhase { phase, scenario, .. } = next;
            let mut began = None;
            let observed = self.observe(next, &mut began);
            let (result, host) = observed.map_err(|error| match began {
                Some(began) => Lost { at: At::Phase(Instant::elapsed(&began)), error },
                None => error.into(),
            })?;
            if scenario == Scenario::Overcommit {
                self.run.check(&mut self.vms.competitors, self.run.plan.phase_ms)?;
            }
            self.run.end_phase(phase, result, host)?;
        }
        self.force.end()?;
        for vm in self.vms.subjects.into_iter().chain(self.vms.competitors) {
            vm.shut_down(self.run.context.cancel);
        }
        Ok(())
    }

    /// `began`: when the load did.
    fn observe(
        &mut self,
        next: NextPhase,
        began: &mut Option<Instant>,
    ) -> Result<(PhaseResult, HostPhase)> {
        let NextPhase { phase, variant, scenario, .. } = next;
        let (plan, context) = (self.run.plan, self.run.context);
        let Vms { subjects, places, competitors } = &mut self.vms;
        let (place, policy) = (places[variant], &plan.variants[variant].policy);
        let length = Duration::from_millis(plan.phase_ms);
        context.progress.timed(&what(&subjects[place].name, scenario, policy), length);
        subjects[place].resume()?;
        let threads = subjects[place].threads();
        let others = competitors.iter().flat_map(|vm| vm.threads().vcpus()).copied();
        let others: Vec<u32> = others.collect();
        let target = Target { pid: threads.pid(), vcpus: threads.vcpus(), others: &others };
        // Before there is competition: the kernel verifies programs for seconds.
        self.force.want(policy, target, context)?;
        self.watch.attach(context, target.pid);
        if scenario == Scenario::Overcommit {
            competitors.iter_mut().try_for_each(Vm::resume)?;
        }
        context.cancel.sleep(SETTLE)?;
        let sched = SchedReader::new(place, subjects, competitors);
        let (mut before, mut after) = (None, None);
        let (sink, watch) = (&mut self.run.sink, &mut self.watch);
        let command = Command::Phase { phase, duration_ms: plan.phase_ms };
        let limit = phase_limit(length);
        let done = subjects[place].call(&command, limit, context.cancel, |event| {
            match event {
                Event::PhaseStarted { .. } => {
                    sink(next.start())?;
                    before = Some(sched.read());
                    *began = Some(Instant::now());
                    watch.begin();
                }
                Event::LoadStopped { .. } => {
                    after = Some(sched.read());
                    watch.end();
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
        let policy = self.force.report()?;
        let (Event::PhaseDone { result, .. }, Some(before), Some(after)) = (done, before, after)
        else {
            return Err(Error::Guest {
                vm: subjects[place].name.clone(),
                message: "did not report every step of the phase".into(),
                detail: String::new(),
                log: None,
            });
        };
        let outside = self.watch.outcome();
        Ok((result, HostPhase { outside, policy, ..after.since(&before) }))
    }
}

/// How long `plan` takes from phase `next` on, in the VMs' host's time. `boots`: VMs that are not
/// booted yet, each of which takes `boot`; with 0, the guests are warm.
fn left(plan: &Plan, next: u32, boots: u32, calibrated: bool, boot: Duration) -> Duration {
    let phase = (Duration::from_millis(plan.phase_ms) + SETTLE).mul_f64(SENDING);
    let guests = plan.guests();
    let guests = guests.iter().enumerate().filter(|(i, guest)| i == *guest).count() as u32;
    let warm = match boots {
        0 => Duration::ZERO,
        _ => Duration::from_millis(plan.warmup_ms).mul_f64(SENDING) * guests,
    };
    let calibrate = if calibrated { Duration::ZERO } else { calibrate::ESTIMATE };
    let phases = schedule(plan);
    let phases = phases.get(next as usize..).unwrap_or_default();
    // Changes of a policy, or of the watcher of a guest.
    let changes = phases.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() as u32 + 1;
    boot * (boots + LOADS * changes) + calibrate + warm + phase * phases.len() as u32
}

/// How long all of `plan` takes, in the VMs' host's time.
pub fn length(plan: &Plan, calibrated: bool, boot: Duration) -> Duration {
    let guests = plan.guests();
    let own = guests.iter().enumerate().filter(|(i, guest)| i == *guest).count();
    left(plan, 0, (own + plan.competitors.len()) as u32, calibrated, boot)
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

fn pause_all(vms: &mut [Vm]) -> Result<()> {
    vms.iter_mut().try_for_each(Vm::pause)
}

/// How long the guest may take for a phase of `length`: an overcommitted guest gets a fraction of
/// the CPU time, and sends its samples after the phase.
fn phase_limit(length: Duration) -> Duration {
    scaled(length * 4 + Duration::from_secs(120))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{Machine, Options, Request};
    use crate::images::Qemu;
    use crate::plan::Variant;
    use crate::progress::Silent;
    use crate::scheduler::InForce;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Puts nothing into force, and notes what it is asked for.
    #[derive(Default)]
    struct Asked {
        applied: RefCell<Vec<Policy>>,
        other_at_check: bool,
        /// The phase at the end of which another scheduler is in charge.
        other_at: Option<usize>,
        phases: Rc<Cell<usize>>,
    }

    struct Nothing {
        other_at: Option<usize>,
        phases: Rc<Cell<usize>>,
    }

    impl InForce for Nothing {
        fn report(&mut self) -> Result<Option<serde_json::Value>, String> {
            let phase = self.phases.replace(self.phases.get() + 1);
            if self.other_at == Some(phase) { Err("another came".into()) } else { Ok(None) }
        }

        fn end(self: Box<Self>, _: Duration) -> Result<(), String> {
            Ok(())
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
            Ok(Box::new(Nothing { other_at: self.other_at, phases: self.phases.clone() }))
        }
    }

    /// A plan of one variant.
    fn idle() -> Plan {
        let request = Request {
            experiment: "churn".into(),
            repeat: 1,
            guest_kernels: vec!["deb:6.12".into()],
            preempt: vec![None],
            guest_args: vec![String::new()],
            policies: vec![Policy::Eevdf],
            phase: None,
            warmup: None,
            options: Options::default(),
            command: String::new(),
        };
        let plan = request.plan(&Machine { cpus: 2, memory_mib: 16 << 10 }).unwrap();
        Plan { competitors: vec![], ..plan }
    }

    /// Puts `policies` into force for the phases of a plan, twice, and returns the phases in their
    /// order. `again`: how often the first phase is measured again.
    fn run(scheduler: &Asked, policies: &[&str], again: u32) -> Result<Vec<u32>> {
        let mut plan = idle();
        plan.repeat = 2;
        let variant = plan.variants[0].clone();
        let of = |name: &&str| Variant { policy: name.parse().unwrap(), ..variant.clone() };
        plan.variants = policies.iter().map(of).collect();
        check_policies(plan.variants.iter().map(|v| &v.policy), scheduler)?;
        let qemu = Qemu { argv: vec![], env: vec![], version: String::new() };
        let left = Cell::new(again);
        let context = Context {
            images: &ImageSet { qemu, guests: BTreeMap::new() },
            accel: Accel::Tcg,
            logs: Path::new("."),
            boot_limit: Duration::ZERO,
            progress: &Silent,
            cancel: &Cancel::default(),
            scheduler,
            again: &|| Ok(left.replace(left.get().saturating_sub(1)) > 0),
            calibrated: true,
            cgroups: false,
        };
        let mut phases = vec![];
        let mut sink = |record| {
            if let Record::PhaseEnd { phase, .. } = record {
                phases.push(phase);
            }
            Ok(())
        };
        let mut run = Run::new(&plan, 0, &context, &mut sink);
        let mut force = Force::default();
        while let Some(NextPhase { phase, variant, .. }) = run.next_phase() {
            let target = Target { pid: 1, vcpus: &[], others: &[] };
            force.want(&plan.variants[variant].policy, target, &context)?;
            let host = HostPhase { policy: force.report()?, ..HostPhase::default() };
            run.end_phase(phase, PhaseResult::default(), host)?;
        }
        Ok(phases)
    }

    #[test]
    fn a_policy_is_put_into_force_once_for_all_phases_in_a_row() {
        let asked = Asked::default();
        assert_eq!(run(&asked, &["eevdf", "full"], 0).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let applied: Vec<_> = asked.applied.take().iter().map(Policy::to_string).collect();
        assert_eq!(applied, ["eevdf", "full", "eevdf"]);
    }

    #[test]
    fn a_disturbed_phase_is_measured_again() {
        assert_eq!(run(&Asked::default(), &["eevdf"], 2).unwrap(), [0, 0, 0, 1, 2, 3]);
    }

    #[test]
    fn the_stock_scheduler_is_checked_like_any_other() {
        let refused = Asked { other_at_check: true, ..Asked::default() };
        let error = run(&refused, &["eevdf"], 0).unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("eevdf")), "{error}");
        assert!(refused.applied.borrow().is_empty());

        let other = Asked { other_at: Some(1), ..Asked::default() };
        let error = run(&other, &["eevdf"], 0).unwrap_err();
        assert!(error.to_string().contains("another came"), "{error}");
        assert_eq!(other.phases.get(), 2);
    }

    #[test]
    fn a_longer_boot_makes_a_longer_run() {
        let plan = idle();
        let [one, ten] = [1, 10].map(|s| length(&plan, false, Duration::from_secs(s)));
        // A boot, and loading the policy.
        assert_eq!(ten - one, Duration::from_secs(9) * (1 + LOADS));
    }
}
