// SPDX-License-Identifier: MIT OR Apache-2.0
//! What carries the VMs of a run: this machine, or a lab host that is booted again when it dies.
//!
//! Nested virtualization under TCG now and then ends a lab host without a word. Its program has passed on every record by then, so
//! the run goes on in a new lab host with the first phase that is not complete.

use super::quiet::CpuTime;
use super::{Choice, LabHost, LabHostImage, Mode, Place, Setting, choose, info};
use crate::error::{Error, Result};
use crate::execute::{self, Context};
use crate::images::Images;
use crate::plan::Plan;
use crate::record::Record;
use crate::recorder::Recorder;
use crate::vm::Accel;
use std::path::Path;
use std::time::Duration;

/// Longest boot of a VM. Nested guests take 6 to 12 s each on an idle machine.
pub const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// Lab hosts that are tried at start, and again for every experiment.
const TRIES: u32 = 3;

pub struct Carrier<'a> {
    setting: Setting<'a>,
    choice: Choice,
    lab: Option<Lab>,
}

struct Lab {
    image: LabHostImage,
    accel: Accel,
    vms_mib: u64,
    boots: u32,
    running: Option<LabHost>,
}

impl<'a> Carrier<'a> {
    /// Chooses by `mode`, proves the choice by booting, and makes room for `vms_mib` MiB of VMs.
    pub fn new(
        mode: Mode,
        images: &Images,
        host_kernel: Option<&str>,
        vms_mib: u64,
        setting: Setting<'a>,
    ) -> Result<Carrier<'a>> {
        let choice = choose(mode, &setting)?;
        let mut carrier = Carrier { setting, choice, lab: None };
        while let Place::LabHost(accel) = carrier.choice.place {
            let booted = images.lab_host(host_kernel, setting.set).and_then(|image| {
                let lab = Lab { image, accel, vms_mib, boots: 0, running: None };
                carrier.lab = Some(lab);
                carrier.lab_host().map(drop)
            });
            let Err(error) = booted else { break };
            carrier.lab = None;
            // The next best: KVM below may not do nested virtualization; a machine may be too small for a lab host.
            let next = match accel {
                _ if matches!(error, Error::Cancelled | Error::Usage(_)) => return Err(error),
                Accel::Kvm => Place::LabHost(Accel::Tcg),
                Accel::Tcg if mode == Mode::Auto => Place::Direct(Accel::Tcg),
                Accel::Tcg => return Err(error),
            };
            setting.progress.notice(&format!("no lab host under {}: {error}", accel.name()));
            carrier.choice.place = next;
            carrier.choice.why +=
                &format!("; no lab host under {}: {}", accel.name(), error.brief());
        }
        let place = match carrier.choice.place {
            Place::Direct(Accel::Kvm) => "KVM on this machine",
            Place::Direct(Accel::Tcg) => "TCG on this machine",
            Place::LabHost(Accel::Kvm) => "a lab host under KVM, with KVM in it",
            Place::LabHost(Accel::Tcg) => "a lab host under TCG, with KVM in it",
        };
        setting.progress.notice(&format!("host: {place} ({})", carrier.choice.why));
        Ok(carrier)
    }

    /// What runs VMs here; `None` when they run in a lab host.
    pub fn direct(&self) -> Option<Accel> {
        match self.choice.place {
            Place::Direct(accel) => Some(accel),
            Place::LabHost(_) => None,
        }
    }

    /// Runs this program with `args` in the lab host, handing each result that it sends to `result`. A lab host that dies is booted
    /// again, and everything is run from the beginning: `result` gets only what the last run sent.
    pub fn run_inside(
        &mut self,
        args: &[&str],
        limit: Duration,
        result: &mut dyn FnMut(serde_json::Value) -> Result<()>,
    ) -> Result<()> {
        let setting = self.setting;
        for tried in 1.. {
            let mut results = Vec::new();
            match self.lab_host()?.run(args, limit, &setting, &mut results) {
                Err(error) if error.is_crash() && tried < TRIES => {
                    self.drop_lab_host();
                    setting.progress.notice(&format!("the lab host is booted again: {error}"));
                }
                ran => {
                    ran?;
                    return results.into_iter().try_for_each(result);
                }
            }
        }
        Ok(())
    }

    /// Runs `plan` with console logs in `logs`, and ends `recorder` whatever happens.
    pub fn execute(&mut self, plan: &Plan, logs: &Path, recorder: &mut Recorder) -> Result<()> {
        let mut before = None;
        let outcome = self.try_execute(plan, logs, recorder, &mut |mut record| {
            match &mut record {
                Record::PhaseStart { .. } => before = CpuTime::now(),
                Record::PhaseEnd { host, .. } => {
                    let both = CpuTime::now().zip(before);
                    host.other_busy = both.and_then(|(after, before)| after.other_since(before));
                }
                _ => {}
            }
            record
        });
        recorder.end(outcome.as_ref().err())?;
        outcome
    }

    /// `look` sees each record of the run when it comes, and may add to it.
    fn try_execute(
        &mut self,
        plan: &Plan,
        logs: &Path,
        recorder: &mut Recorder,
        look: &mut dyn FnMut(Record) -> Record,
    ) -> Result<()> {
        let setting = Setting { logs, ..self.setting };
        let qemu = &setting.set.qemu.version;
        let accel = match self.choice.place {
            Place::Direct(accel) | Place::LabHost(accel) => accel,
        };
        let here = info::info(accel.name(), &self.choice.why, qemu);
        if self.lab.is_none() {
            let context = Context {
                images: setting.set,
                accel,
                logs,
                boot_limit: BOOT_LIMIT,
                progress: setting.progress,
                cancel: setting.cancel,
                watcher: setting.watcher,
            };
            return execute::execute(plan, 0, here, &context, &mut |record| {
                recorder.write(look(record))
            });
        }
        for tried in 1.. {
            let lab_host = self.lab_host()?;
            let from = recorder.phases_done();
            let mut sink = |record| recorder.write(look(record));
            let ran = lab_host.execute(plan, from, here.clone(), &setting, &mut sink);
            match ran {
                Err(error) if error.is_crash() && tried < TRIES && !recorder.has_ended() => {
                    self.drop_lab_host();
                    let text = "the lab host is booted again";
                    setting.progress.notice(&format!("{text}: {error}"));
                    let text = format!("{text}: {}", error.brief());
                    recorder.write(Record::Notice { text })?;
                }
                // Everything was measured; only logs were still to come.
                Err(error) if error.is_crash() && recorder.is_complete() => {
                    self.drop_lab_host();
                    return Ok(());
                }
                ran => return ran,
            }
        }
        Ok(())
    }

    /// The running lab host, booted if there is none.
    fn lab_host(&mut self) -> Result<&mut LabHost> {
        let setting = self.setting;
        let Some(lab) = &mut self.lab else {
            return Err(Error::Other("there is no lab host in this mode".into()));
        };
        for tried in 1.. {
            if lab.running.is_some() {
                break;
            }
            lab.boots += 1;
            match LabHost::boot(&lab.image, lab.accel, lab.vms_mib, lab.boots, &setting) {
                Ok(running) => lab.running = Some(running),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) if tried < TRIES => setting
                    .progress
                    .notice(&format!("boot {tried} of the lab host failed, trying again: {error}")),
                Err(error) => return Err(error),
            }
        }
        lab.running.as_mut().ok_or_else(|| Error::Other("the lab host did not boot".into()))
    }

    fn drop_lab_host(&mut self) {
        if let Some(lab) = &mut self.lab {
            lab.running = None;
        }
    }

    /// Ends what is still running, in order.
    pub fn shut_down(mut self) {
        if let Some(lab_host) = self.lab.take().and_then(|lab| lab.running) {
            lab_host.shut_down();
        }
    }
}
