// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host of a run's VMs: this machine, or a lab host that is booted again when it dies.
//!
//! Nested virtualization under TCG sometimes ends a lab host without any message. By then its
//! program has passed on every record, so the run goes on in a new lab host, with the first phase
//! that is not complete.

use super::noise::Noise;
use super::{Bed, Choice, HostKind, LabHost, Mode, RunContext, choose, info, lab_host};
use crate::costs::Costs;
use crate::dilation::Dilation;
use crate::error::{Error, Result};
use crate::execute::{self, Context};
use crate::host_scheduler::HostScheduler;
use crate::images::{Images, LabHostImage};
use crate::plan::Plan;
use crate::record::Record;
use crate::recorder::Recorder;
use crate::vm::{Accel, retry::Attempts};
use std::path::Path;
use std::time::Duration;

/// Longest boot of a VM. Nested guests take 6 to 12 s each on an idle machine.
pub const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// In how many lab hosts a phase, or a program, is tried.
const TRIES: u32 = 3;

pub struct PlanHost<'a> {
    run: RunContext<'a>,
    bed: Bed,
    choice: Choice,
    lab: Option<Lab>,
    /// The costs of the bed, once a plan has measured them.
    costs: Option<Costs>,
}

struct Lab {
    config: lab_host::Config,
    boots: u32,
    running: Option<LabHost>,
}

/// Passes a record of a plan on. The costs that the first plan measured are those of each plan.
fn keep(
    mut record: Record,
    noise: &Noise,
    costs: &mut Option<Costs>,
    recorder: &mut Recorder,
) -> Result<()> {
    noise.look(&mut record);
    let begins = matches!(record, Record::Run { .. });
    if let Record::Costs { costs: measured } = &record {
        *costs = Some(measured.clone());
    }
    recorder.write(record)?;
    let known = costs.clone().filter(|_| begins);
    known.map_or(Ok(()), |costs| recorder.write(Record::Costs { costs }))
}

/// Refuses a kernel that lacks what a policy or a VM's cgroup needs.
fn check_lab_host(image: &LabHostImage, run: &RunContext) -> Result<()> {
    let (release, ability) = (&image.image.release, image.ability.as_ref());
    run.need.check_lab_host(release, ability.map(|ability| ability.sched_ext))?;
    match ability.and_then(|ability| ability.lacks_of_cgroups(run.limits)) {
        None => Ok(()),
        Some(lacks) => Err(Error::Usage(format!(
            "the lab host's kernel {release} has no {lacks}: leave --host-kernel out, and the lab takes one that has"
        ))),
    }
}

impl<'a> PlanHost<'a> {
    /// Chooses the host for `bed` and boots the lab host, if it is one, with room for `vms_mib` MiB
    /// of VMs.
    pub fn new(
        bed: &Bed,
        images: &Images,
        vms_mib: u64,
        run: RunContext<'a>,
    ) -> Result<PlanHost<'a>> {
        let choice = choose(bed, &run)?;
        let mut plan_host = PlanHost { run, bed: bed.clone(), choice, lab: None, costs: None };
        while let HostKind::LabHost(accel) = plan_host.choice.kind {
            let booted = images.lab_host(bed.kernel.as_deref(), run.set).and_then(|image| {
                check_lab_host(&image, &run)?;
                let config = lab_host::Config::new(bed, accel, vms_mib, image);
                let lab = Lab { config, boots: 0, running: None };
                plan_host.lab = Some(lab);
                plan_host.lab_host().map(drop)
            });
            let Err(error) = booted else { break };
            plan_host.lab = None;
            // The second choice: KVM on this machine may lack nested virtualization, or the machine
            // may be too small for a lab host.
            let next = match accel {
                _ if matches!(error, Error::Cancelled | Error::Usage(_)) => return Err(error),
                Accel::Kvm => HostKind::LabHost(Accel::Tcg),
                Accel::Tcg if bed.needs_tcg().is_some() || bed.needs_lab_host() => {
                    return Err(error);
                }
                Accel::Tcg if bed.mode == Mode::Auto => HostKind::Direct(Accel::Tcg),
                Accel::Tcg => return Err(error),
            };
            run.progress.notice(&format!("no lab host under {}: {error}", accel.name()));
            plan_host.choice.kind = next;
            plan_host.choice.why +=
                &format!("; no lab host under {}: {}", accel.name(), error.brief());
        }
        let described = match plan_host.choice.kind {
            HostKind::Direct(accel) => format!("{} on this machine", accel.name().to_uppercase()),
            HostKind::LabHost(accel) => {
                let inside = if run.vms { ", with KVM in it" } else { "" };
                format!("a lab host under {}{inside}", accel.name().to_uppercase())
            }
        };
        let dilation = plan_host.dilation();
        let time = match dilation.factor() {
            1 => String::new(),
            n => format!("; time {dilation}: a second of the guests' takes {n}"),
        };
        run.progress.notice(&format!("host: {described} ({}){time}", plan_host.choice.why));
        Ok(plan_host)
    }

    /// The accelerator of VMs on this machine; `None` if they run in a lab host.
    pub fn direct(&self) -> Option<Accel> {
        match self.choice.kind {
            HostKind::Direct(accel) => Some(accel),
            HostKind::LabHost(_) => None,
        }
    }

    /// How much the time of the VMs' host is dilated.
    pub fn dilation(&self) -> Dilation {
        self.bed.dilation(self.choice.kind)
    }

    /// Runs this program with `args` in the lab host and hands its results to `result`. When the
    /// lab host dies it is booted again and the program starts from the beginning; `result` gets
    /// only the results of the last run, also if that failed.
    pub fn run_inside(
        &mut self,
        args: &[&str],
        limit: Duration,
        result: &mut dyn FnMut(serde_json::Value) -> Result<()>,
    ) -> Result<()> {
        let run = self.run;
        for tried in 1.. {
            let mut results = Vec::new();
            match self.lab_host()?.run(args, limit, &run, &mut results) {
                Err(error) if error.is_crash() && tried < TRIES => {
                    self.drop_lab_host();
                    run.progress.notice(&format!("the lab host is booted again: {error}"));
                }
                ran => {
                    results.into_iter().try_for_each(result)?;
                    return ran;
                }
            }
        }
        Ok(())
    }

    /// Runs `plan` with console logs in `logs`, and ends `recorder` also after an error.
    pub fn execute(&mut self, plan: &Plan, logs: &Path, recorder: &mut Recorder) -> Result<()> {
        let noise = Noise::new(self.run.progress, self.bed.again);
        let mut costs = self.costs.take();
        let outcome = self.try_execute(plan, logs, recorder, &noise, &mut costs);
        self.costs = costs;
        recorder.end(outcome.as_ref().err())?;
        outcome
    }

    fn try_execute(
        &mut self,
        plan: &Plan,
        logs: &Path,
        recorder: &mut Recorder,
        noise: &Noise,
        costs: &mut Option<Costs>,
    ) -> Result<()> {
        let run = RunContext { logs, ..self.run };
        let qemu = &run.set.qemu.version;
        let accel = match self.choice.kind {
            HostKind::Direct(accel) | HostKind::LabHost(accel) => accel,
        };
        let here = info::info(accel.name(), &self.choice.why, qemu);
        if self.lab.is_none() {
            let context = Context {
                images: run.set,
                accel,
                logs,
                boot_limit: BOOT_LIMIT,
                progress: run.progress,
                cancel: run.cancel,
                scheduler: &HostScheduler,
                again: &|| Ok(noise.again()),
                calibrated: costs.is_some(),
                cgroups: false,
            };
            let sink = &mut |record| keep(record, noise, costs, recorder);
            return execute::execute(plan, 0, here, &context, sink);
        }
        let (mut tried, dilation) = (0, self.dilation());
        loop {
            let lab_host = self.lab_host()?;
            let (from, calibrated) = (recorder.phases_done(), costs.is_some());
            if from == 0 {
                let length = execute::length(plan, calibrated, lab_host.guest_boot());
                let minutes = dilation.outside(length).as_secs().div_ceil(60);
                run.progress.notice(&format!("{}: about {minutes} min", plan.experiment));
            }
            let mut sink = |record| keep(record, noise, costs, recorder);
            let (start, here, again) = ((from, calibrated), here.clone(), || noise.again());
            let ran = lab_host.execute(plan, start, here, &run, &mut sink, &again);
            let Err(error) = ran else { return Ok(()) };
            if !error.is_crash() {
                return Err(error);
            }
            // Whoever uses this host next boots another one.
            self.drop_lab_host();
            if recorder.is_complete() {
                // Everything was measured; only logs are missing.
                return Ok(());
            }
            tried = if recorder.phases_done() > from { 1 } else { tried + 1 };
            if tried == TRIES || recorder.has_ended() {
                return Err(error);
            }
            let text = "the lab host is booted again";
            run.progress.notice(&format!("{text}: {error}"));
            let text = format!("{text}: {}", error.brief());
            recorder.write(Record::Notice { text })?;
        }
    }

    /// The running lab host, booted if there is none.
    fn lab_host(&mut self) -> Result<&mut LabHost> {
        let run = self.run;
        let Some(lab) = &mut self.lab else {
            return Err(Error::Other("there is no lab host in this mode".into()));
        };
        let mut attempts = Attempts::new(lab_host::BOOT_LIMIT);
        while lab.running.is_none() {
            lab.boots += 1;
            let (limit, number) = (attempts.limit(), lab.boots);
            match LabHost::boot(&lab.config, number, limit, &run) {
                Ok(running) => lab.running = Some(running),
                Err(error) => {
                    let error = attempts.again(error)?;
                    let tried = attempts.failed();
                    run.progress.notice(&format!(
                        "boot {tried} of the lab host failed, trying again: {error}"
                    ));
                }
            }
        }
        lab.running.as_mut().ok_or_else(|| Error::Other("the lab host did not boot".into()))
    }

    fn drop_lab_host(&mut self) {
        if let Some(lab) = &mut self.lab {
            lab.running = None;
        }
    }

    /// Powers the lab host off, if one runs.
    pub fn shut_down(mut self) {
        if let Some(lab_host) = self.lab.take().and_then(|lab| lab.running) {
            lab_host.shut_down(self.run.cancel);
        }
    }
}
