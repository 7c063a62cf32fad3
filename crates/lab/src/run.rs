// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole run: plans, images, the host, the measurements, the report.

use crate::error::{Error, Result};
use crate::execute::{self, Context};
use crate::experiments::{Machine, Request, Size};
use crate::host::{self, Choice, LabHost, LabHostImage, Mode, Place};
use crate::images::{ImageSet, Images, Program};
use crate::plan::Plan;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::record::Record;
use crate::report::{self, Summary};
use crate::vm::Accel;
use reprieve_init::protocol::Workload;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is kept for the machine itself when VMs are sized, MiB; a lab host takes about this much more.
const SPARE_MIB: u64 = 1024;

/// Longest boot of a VM. Nested guests take 6 to 12 s each on an idle machine.
pub const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// How a run is carried out, whatever it measures.
pub struct Settings {
    pub mode: Mode,
    /// Lab host kernel: `deb:VERSION` or a path; the newest that can do it by default.
    pub host_kernel: Option<String>,
    /// The results' directory; with several experiments, the parent of theirs.
    pub out: PathBuf,
}

/// What became of one experiment.
pub struct Outcome {
    pub dir: PathBuf,
    pub summary: Summary,
}

/// Carries out `requests` one after the other on the same host. Each experiment's results are written as they come; when one fails,
/// what it measured is reported with it and the rest is not started.
pub fn run(
    requests: &[Request],
    settings: &Settings,
    progress: &dyn Progress,
    cancel: &Cancel,
    done: &mut dyn FnMut(Outcome),
) -> Result<()> {
    let machine = Machine {
        cpus: host::cpus(),
        memory_mib: host::free_memory_mib().saturating_sub(SPARE_MIB) * 9 / 10,
    };
    let plans = requests.iter().map(|r| r.plan(&machine)).collect::<Result<Vec<_>>>()?;
    let dirs = out_dirs(&plans, &settings.out)?;

    let mut kernels: Vec<String> = Vec::new();
    let mut programs = Vec::new();
    for plan in &plans {
        kernels.extend(plan.variants.iter().map(|v| v.guest_kernel.clone()));
        let vms = plan.competitors.iter().chain([&plan.subject]);
        programs.extend(vms.filter_map(|vm| program_of(&vm.workload)));
    }
    kernels.sort();
    kernels.dedup();
    programs.sort();
    programs.dedup();
    let images = Images::open(cancel, progress)?;
    let set = images.prepare(&kernels, &programs)?;

    let logs = dirs[0].join("logs");
    let mut choice = host::choose(settings.mode, &set, &logs, progress, cancel)?;
    let mut lab_host = None;
    if let Place::LabHost(accel) = choice.place {
        let vms = plans.iter().map(Size::memory_of).max().unwrap_or(0);
        let booted = images
            .lab_host(settings.host_kernel.as_deref(), &set)
            .and_then(|image| boot_lab_host(&image, &set, accel, vms, &logs, progress, cancel));
        match booted {
            Ok(booted) => lab_host = Some(booted),
            Err(error) if settings.mode == Mode::Auto && !matches!(error, Error::Cancelled) => {
                progress.notice(&format!("no lab host: {error}; the VMs run directly under TCG"));
                choice = Choice {
                    place: Place::Direct(Accel::Tcg),
                    why: format!("{}; no lab host: {error}", choice.why),
                };
            }
            Err(error) => return Err(error),
        }
    }
    progress.notice(&match choice.place {
        Place::Direct(Accel::Kvm) => format!("host: KVM on this machine ({})", choice.why),
        Place::Direct(Accel::Tcg) => format!("host: TCG on this machine ({})", choice.why),
        Place::LabHost(_) => format!("host: a lab host with KVM ({})", choice.why),
    });

    for (plan, dir) in plans.iter().zip(&dirs) {
        let place = Carrier { set: &set, choice: &choice, lab_host: lab_host.as_mut() };
        let measured = measure(plan, place, dir, progress, cancel);
        // A run that failed before its first phase has nothing to report but its error.
        match (report::write(dir), measured) {
            (Ok(summary), measured) => {
                done(Outcome { dir: dir.clone(), summary });
                measured?;
            }
            (Err(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(error),
        }
    }
    if let Some(lab_host) = lab_host {
        lab_host.shut_down();
    }
    Ok(())
}

fn boot_lab_host(
    image: &LabHostImage,
    set: &ImageSet,
    accel: Accel,
    vms_mib: u64,
    logs: &Path,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<LabHost> {
    LabHost::boot(image, &set.qemu, accel, vms_mib, logs, progress, cancel)
}

struct Carrier<'a> {
    set: &'a ImageSet,
    choice: &'a Choice,
    lab_host: Option<&'a mut LabHost>,
}

/// Runs `plan`, with `DIR/raw.jsonl` written as it goes; it ends with [`Record::End`] whatever happens short of a crash.
fn measure(
    plan: &Plan,
    carrier: Carrier,
    dir: &Path,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<()> {
    let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
    let mut sink = |record| recorder.write(&record);
    let logs = dir.join("logs");
    let why = &carrier.choice.why;
    let outcome = match (carrier.choice.place, carrier.lab_host) {
        (Place::LabHost(accel), Some(lab_host)) => {
            let outer = host::info(mode_name(accel), why, &carrier.set.qemu.version);
            lab_host.execute(plan, outer, &logs, progress, cancel, &mut sink)
        }
        (Place::Direct(accel) | Place::LabHost(accel), _) => {
            let context = Context {
                images: carrier.set,
                accel,
                logs: &logs,
                boot_limit: BOOT_LIMIT,
                progress,
                cancel,
            };
            let info = host::info(mode_name(accel), why, &carrier.set.qemu.version);
            execute::execute(plan, info, &context, &mut sink)
        }
    };
    if recorder.begun && !recorder.ended {
        let reason = outcome.as_ref().err().map(ToString::to_string);
        recorder.write(&Record::End { complete: false, reason })?;
    }
    outcome
}

/// Writes `raw.jsonl`.
struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    begun: bool,
    ended: bool,
}

impl Recorder {
    fn create(path: PathBuf) -> Result<Recorder> {
        let file = BufWriter::new(File::create(&path).map_err(Error::io(&path))?);
        Ok(Recorder { path, file, begun: false, ended: false })
    }

    fn write(&mut self, record: &Record) -> Result<()> {
        self.begun = true;
        self.ended |= matches!(record, Record::End { .. });
        let mut write = || {
            serde_json::to_writer(&mut self.file, record)?;
            self.file.write_all(b"\n")?;
            // Samples come by the thousand, between records that are worth a write each.
            if matches!(record, Record::Sample { .. }) { Ok(()) } else { self.file.flush() }
        };
        write().map_err(Error::io(&self.path))
    }
}

fn mode_name(accel: Accel) -> &'static str {
    match accel {
        Accel::Kvm => "kvm",
        Accel::Tcg => "tcg",
    }
}

fn program_of(workload: &Workload) -> Option<Program> {
    match workload {
        Workload::Postmark { .. } => Some(Program::Postmark),
        Workload::Dbench { .. } => Some(Program::Dbench),
        _ => None,
    }
}

/// Makes the directory of each plan, refusing to mix with older results.
fn out_dirs(plans: &[Plan], out: &Path) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for plan in plans {
        let dir = if plans.len() == 1 { out.to_path_buf() } else { out.join(&plan.experiment) };
        if dir.join("raw.jsonl").exists() {
            return Err(Error::Usage(format!(
                "{} already holds results: give another --out",
                dir.display()
            )));
        }
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
        dirs.push(dir);
    }
    Ok(dirs)
}
