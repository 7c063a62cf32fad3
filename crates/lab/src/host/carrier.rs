// SPDX-License-Identifier: MIT OR Apache-2.0
//! What carries the VMs of a run: this machine, or a lab host that is booted again when it dies.
//!
//! Nested virtualization under TCG now and then ends a lab host without a word. Its program has passed on every record by then, so
//! the run goes on in a new lab host with the first phase that is not complete.

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
        if let Place::LabHost(accel) = carrier.choice.place {
            let booted = images.lab_host(host_kernel, setting.set).and_then(|image| {
                let lab = Lab { image, accel, vms_mib, boots: 0, running: None };
                carrier.lab = Some(lab);
                carrier.lab_host().map(drop)
            });
            match booted {
                Err(error) if mode == Mode::Auto && !matches!(error, Error::Cancelled) => {
                    carrier.lab = None;
                    carrier.choice.place = Place::Direct(Accel::Tcg);
                    carrier.choice.why += &format!("; no lab host: {error}");
                }
                booted => booted?,
            }
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

    /// Runs `plan` with console logs in `logs`, and ends `recorder` whatever happens.
    pub fn execute(&mut self, plan: &Plan, logs: &Path, recorder: &mut Recorder) -> Result<()> {
        let outcome = self.try_execute(plan, logs, recorder);
        recorder.end(outcome.as_ref().err())?;
        outcome
    }

    fn try_execute(&mut self, plan: &Plan, logs: &Path, recorder: &mut Recorder) -> Result<()> {
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
            };
            return execute::execute(plan, 0, here, &context, &mut |record| recorder.write(record));
        }
        for tried in 1.. {
            let lab_host = self.lab_host()?;
            let from = recorder.phases_done();
            let ran = lab_host
                .execute(plan, from, here.clone(), &setting, &mut |record| recorder.write(record));
            match ran {
                Err(error) if error.is_crash() && tried < TRIES => {
                    self.drop_lab_host();
                    let text = format!("the lab host is booted again: {error}");
                    setting.progress.notice(&text);
                    recorder.write(Record::Notice { text })?;
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
