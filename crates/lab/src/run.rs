// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole run: plans, images, the host, the measurements, the report.

use crate::error::{Error, Result};
use crate::experiments::{Machine, Request, Size};
use crate::host::{self, Carrier, Mode, Setting};
use crate::images::kernels::KernelSpec;
use crate::images::{Images, Program};
use crate::outside::Watcher;
use crate::plan::Plan;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Summary};
use reprieve_init::protocol::Workload;
use std::fs;
use std::path::{Path, PathBuf};

/// What is kept for the machine itself when VMs are sized, MiB; a lab host takes about this much more.
const SPARE_MIB: u64 = 1024;

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

/// Carries out `requests` one after the other on the same host, `watcher` looking into the guests under test. Each experiment's results are written as they come; when one fails,
/// what it measured is reported with it and the rest is not started.
pub fn run(
    requests: &[Request],
    settings: &Settings,
    watcher: Option<&dyn Watcher>,
    progress: &dyn Progress,
    cancel: &Cancel,
    done: &mut dyn FnMut(Outcome),
) -> Result<()> {
    let machine = Machine {
        cpus: host::cpus(),
        memory_mib: host::free_memory_mib().saturating_sub(SPARE_MIB) * 9 / 10,
    };
    for (i, request) in requests.iter().enumerate() {
        if requests[..i].iter().any(|other| other.experiment == request.experiment) {
            let name = &request.experiment;
            return Err(Error::Usage(format!("{name} is asked for twice: use --repeat")));
        }
    }
    if let Some(kernel) = &settings.host_kernel {
        kernel.parse::<KernelSpec>()?;
    }
    let plans = requests.iter().map(|r| r.plan(&machine)).collect::<Result<Vec<_>>>()?;
    let mut kernels: Vec<String> = Vec::new();
    let mut programs = Vec::new();
    for plan in &plans {
        for variant in &plan.variants {
            variant.guest_kernel.parse::<KernelSpec>()?;
            kernels.push(variant.guest_kernel.clone());
        }
        let vms = plan.competitors.iter().chain([&plan.subject]);
        programs.extend(vms.filter_map(|vm| program_of(&vm.workload)));
    }
    kernels.sort();
    kernels.dedup();
    programs.sort();
    programs.dedup();
    let dirs = out_dirs(&plans, &settings.out)?;
    let images = Images::open(cancel, progress)?;
    let set = images.prepare(&kernels, &programs)?;

    let logs = dirs[0].join("logs");
    let setting = Setting { set: &set, logs: &logs, progress, cancel, watcher };
    let vms_mib = plans.iter().map(Size::memory_of).max().unwrap_or(0);
    let host_kernel = settings.host_kernel.as_deref();
    let mut carrier = Carrier::new(settings.mode, &images, host_kernel, vms_mib, setting)?;
    for (plan, dir) in plans.iter().zip(&dirs) {
        let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
        let measured = carrier.execute(plan, &dir.join("logs"), &mut recorder);
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
    carrier.shut_down();
    Ok(())
}

fn program_of(workload: &Workload) -> Option<Program> {
    match workload {
        Workload::Postmark { .. } => Some(Program::Postmark),
        Workload::Dbench { .. } => Some(Program::Dbench),
        Workload::Hold { .. } => Some(Program::Hold),
        Workload::Bench { .. } => Some(Program::Reprieve),
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
