// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole run, from the requests to the reports.

use crate::error::{Error, Result};
use crate::execute;
use crate::experiments::{Machine, Request, Size};
use crate::host::{self, Bed, Mode, PlanHost, RunContext};
use crate::host_scheduler::HostScheduler;
use crate::images::kernels::KernelSpec;
use crate::images::{Images, Program};
use crate::plan::Plan;
use crate::policy::Policy;
use crate::process::Cancel;
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::report::{self, Summary};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that the VMs leave to the machine itself, MiB; a lab host needs about this much more.
const SPARE_MIB: u64 = 1024;

/// The settings of a run that are the same for every experiment.
pub struct Settings {
    pub bed: Bed,
    /// The directory of the results; with several experiments, each has a directory in it.
    pub out: PathBuf,
}

/// The results of one experiment.
pub struct Outcome {
    pub dir: PathBuf,
    pub summary: Summary,
}

/// Carries out `requests` one after the other on the same host. Records are written as they come.
/// When an experiment fails, its complete phases are reported. If that is because a VM or the lab
/// host died too often, the experiments after it are carried out all the same.
pub fn run(
    requests: &[Request],
    settings: &Settings,
    around: Around,
    done: &mut dyn FnMut(Outcome),
) -> Result<()> {
    let machine = machine(&settings.bed)?;
    for (i, request) in requests.iter().enumerate() {
        if requests[..i].iter().any(|other| other.experiment == request.experiment) {
            let name = &request.experiment;
            return Err(Error::Usage(format!("{name} is asked for twice: use --repeat")));
        }
    }
    let plans = requests.iter().map(|r| r.plan(&machine)).collect::<Result<Vec<_>>>()?;
    let dirs = out_dirs(&plans, &settings.out);
    on_host(&plans, &dirs, settings, around, |plan_host| {
        let mut first_crash = Ok(());
        for ((request, plan), dir) in requests.iter().zip(&plans).zip(&dirs) {
            let mut plan = plan.clone();
            request.shorten(&mut plan, plan_host.dilation());
            let mut recorder = Recorder::create(dir.join("raw.jsonl"))?;
            let measured = plan_host.execute(&plan, &dir.join("logs"), &mut recorder);
            // A run that failed before its first phase has no results, only its error.
            match report::write(dir) {
                Ok(summary) => done(Outcome { dir: dir.clone(), summary }),
                Err(error) if measured.is_ok() => return Err(error),
                Err(_) => {}
            }
            match measured {
                Err(error) if error.ends_one_experiment() => {
                    first_crash = first_crash.and(Err(error))
                }
                measured => measured?,
            }
        }
        first_crash
    })
}

/// The machine that `bed` offers VMs.
pub fn machine(bed: &Bed) -> Result<Machine> {
    bed.check()?;
    let memory_mib = host::free_memory_mib().saturating_sub(SPARE_MIB) * 9 / 10;
    Ok(Machine { cpus: bed.cpus(), memory_mib })
}

/// The things that a run needs from outside.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub progress: &'a dyn Progress,
    pub cancel: &'a Cancel,
}

/// Prepares everything that `plans` need, and hands `work` a host for them: one that can do all of
/// their policies and has memory for the largest. `dirs`: where each plan's results go; made here,
/// with a directory for logs in the first.
///
/// # Errors
/// Before anything is fetched or booted, if the settings do not fit or a directory has results; as
/// `work`.
pub fn on_host(
    plans: &[Plan],
    dirs: &[PathBuf],
    settings: &Settings,
    around: Around,
    work: impl FnOnce(&mut PlanHost) -> Result<()>,
) -> Result<()> {
    let Around { progress, cancel } = around;
    settings.bed.check()?;
    let policies: Vec<&Policy> =
        plans.iter().flat_map(|plan| &plan.variants).map(|v| &v.policy).collect();
    if matches!(settings.bed.mode, Mode::Kvm | Mode::Tcg) {
        execute::check_policies(policies.iter().copied(), &HostScheduler)?;
        plans.iter().try_for_each(execute::check_cgroups)?;
    }
    let need = policies.iter().map(|policy| policy.need()).max().unwrap_or_default();
    let (kernels, programs) = needs(plans)?;
    make_dirs(dirs)?;
    let images = Images::open(cancel, progress)?;
    let set = images.prepare(&kernels, &programs)?;

    let logs = dirs[0].join("logs");
    let (logs, set, vms) = (logs.as_path(), &set, true);
    let limits = plans.iter().any(Plan::limits);
    let run = RunContext { set, logs, progress, cancel, need, limits, vms };
    let vms_mib = plans.iter().map(Size::memory_of).max().unwrap_or(0);
    let mut plan_host = PlanHost::new(&settings.bed, &images, vms_mib, run)?;
    work(&mut plan_host)?;
    plan_host.shut_down();
    Ok(())
}

/// The guest kernels and the programs of all `plans`.
fn needs(plans: &[Plan]) -> Result<(Vec<String>, Vec<Program>)> {
    let (mut kernels, mut programs) = (BTreeSet::new(), BTreeSet::new());
    for plan in plans {
        for variant in &plan.variants {
            variant.guest_kernel.parse::<KernelSpec>()?;
            kernels.insert(variant.guest_kernel.clone());
        }
        let vms = plan.competitors.iter().chain([&plan.subject]);
        programs.extend(vms.filter_map(|vm| vm.workload.program()));
    }
    Ok((kernels.into_iter().collect(), programs.into_iter().collect()))
}

/// The directory of each plan.
fn out_dirs(plans: &[Plan], out: &Path) -> Vec<PathBuf> {
    let of = |plan: &Plan| out.join(&plan.experiment);
    if plans.len() == 1 { vec![out.into()] } else { plans.iter().map(of).collect() }
}

/// Makes `dirs`; an error if one has results already.
fn make_dirs(dirs: &[PathBuf]) -> Result<()> {
    for dir in dirs {
        if dir.join("raw.jsonl").exists() {
            return Err(Error::Usage(format!(
                "{} already holds results: give another --out",
                dir.display()
            )));
        }
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).map_err(Error::io(&logs))?;
    }
    Ok(())
}
