// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve-dev check`: whether `reprieve watch` sees what guests really do, and `reprieve guard`
//! does what it should.
//!
//! A check makes a guest do something known (the kernel module `reprieve_hold` keeps a vCPU in an
//! RCU reader) or measures it from inside (tracing times the grace periods), and compares that with
//! what `watch` reports. The checks run on this machine or, with `--host nested`, in a lab host:
//! there this program runs again, and sends its findings to the program outside.

mod attach;
pub mod bpf_objects;
mod classes;
mod cycles;
mod doctor;
mod grace;
pub mod guard;
pub mod guest_setup;
mod load;
mod soak;
mod stopped;

use crate::args::{DEFAULT_KERNEL, HostArgs};
use crate::host::{Logs, Messages};
use crate::host::{Message, PlanHost, RunContext, log_directory};
use crate::images::{ImageSet, Images, Program};
use crate::policy::Need;
use crate::process::Cancel;
use crate::progress::{Lines, Progress};
use crate::signals::cancel_on_signal;
use crate::vm::Accel;
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use guest_setup::GuestSetup;
use reprieve_page::output::{print, print_json};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Checks whose processes play VMs, or that need none.
const WITHOUT_VMS: [Check; 2] = [Check::Program, Check::GuardShare];

/// Time limit of all checks in a lab host, besides that of `soak`.
const INSIDE_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args)]
pub struct CheckArgs {
    /// The checks to run [default: all but `soak`]
    #[arg(value_enum)]
    checks: Vec<Check>,
    #[command(flatten)]
    host: HostArgs,
    /// Kernel of the guests: deb:VERSION or the path of a vmlinuz with its modules and headers
    #[arg(long, default_value = DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Preemptions of each vCPU that `classes` waits for
    #[arg(long, default_value_t = 300)]
    preemptions: u64,
    /// How often `cycles` attaches
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    cycles: u32,
    /// How long `soak` goes on, in the time of the VMs' host
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1h")]
    length: Duration,
    /// Seed of `soak`'s order of events [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// vCPUs that are kept in a known state are classed right
    Classes,
    /// A vCPU that is stopped in a reader is named within 50 looks, with the reader's function
    Stopped,
    /// Grace periods last as long from outside as from inside
    Grace,
    /// Attaching leaves the memory use of a big VM as it was
    Attach,
    /// Attaching and detaching again and again leaves nothing behind
    Cycles,
    /// `doctor --vm` and the guest's own kernel say the same about the guest
    Doctor,
    /// The kernel takes `guard`'s program; or `guard` says why it cannot
    Program,
    /// `guard` schedules VMs under each policy, and the stock scheduler is back afterwards; or it
    /// says why it cannot
    Guard,
    /// VMs under `guard` have what is reserved for them beside ordinary threads, and by weight
    /// among each other, also a thousand runnable vCPUs, some of whose guests lie
    GuardShare,
    /// A VM's management command under `guard` takes at most 8 times as long as under the stock
    /// scheduler
    GuardLatency,
    /// Nothing is stuck or left behind while VMs start, reset and die under load, and `guard` is
    /// ended, killed and started again
    Soak,
}

/// The result of a check.
#[derive(Serialize, Deserialize)]
struct Finding {
    check: String,
    passed: bool,
    /// Lines for the user.
    text: String,
    figures: serde_json::Value,
}

impl Finding {
    fn new(check: Check, passed: bool, text: String, figures: serde_json::Value) -> Finding {
        Finding { check: name(check), passed, text, figures }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let verdict = if self.passed { "passed" } else { "FAILED" };
        write!(f, "{}: {verdict}\n{}", self.check, self.text)
    }
}

fn name(check: Check) -> String {
    check.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default()
}

pub fn main(args: &CheckArgs) -> Result<()> {
    let (_soak, usual) = Check::value_variants().split_last().context("no checks")?;
    let checks = if args.checks.is_empty() { usual } else { &args.checks };
    let cancel = cancel_on_signal()?;
    if let Some(images) = &args.images {
        return inside(args, checks, images, &cancel);
    }
    let progress = Lines::default();
    let mut findings = Vec::new();
    let ran = outside(args, checks, &progress, &cancel, &mut findings);
    // Also the verdicts before a check that could not be carried out.
    if args.json && (ran.is_ok() || !findings.is_empty()) {
        print_json(&findings)?;
    } else {
        for finding in &findings {
            print(&format!("{finding}\n"))?;
        }
    }
    ran?;
    let failed: Vec<&str> =
        findings.iter().filter(|f| !f.passed).map(|f| f.check.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed checks: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the checks on this machine, or in a lab host on it, and adds each result to `findings`.
fn outside(
    args: &CheckArgs,
    checks: &[Check],
    progress: &dyn Progress,
    cancel: &Cancel,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let bed = args.host.bed();
    bed.check()?;
    let logs = log_directory()?;
    let images = Images::open(cancel, progress)?;
    let kernel = &args.guest_kernel;
    let set = images.prepare(std::slice::from_ref(kernel), &[Program::Hold])?;
    let context = RunContext {
        set: &set,
        logs: logs.path(),
        progress,
        cancel,
        limits: false,
        need: Need::Nothing,
        vms: checks.iter().any(|check| !WITHOUT_VMS.contains(check)),
    };
    let memory = match checks {
        _ if checks.contains(&Check::Attach) => attach::MEMORY_MIB,
        _ if checks.contains(&Check::Soak) => soak::ALL_MIB,
        _ => 1024,
    };
    let mut plan_host = PlanHost::new(&bed, &images, memory, context)?;
    let ran = match plan_host.direct() {
        Some(accel) => {
            let setup = GuestSetup::new(&set, kernel, accel, logs.path(), progress, cancel)?;
            run(args, checks, &setup, &mut |finding| {
                findings.push(finding);
                Ok(())
            })
        }
        None => in_lab_host(args, checks, &mut plan_host, findings),
    };
    plan_host.shut_down();
    let failed = ran.is_err() || findings.iter().any(|finding| !finding.passed);
    if !cancel.is_set() && (failed || has_failures(logs.path())) {
        let kept = logs.keep();
        progress.notice(&format!("console logs: {}", kept.display()));
    }
    ran
}

/// Whether a VM failed whose logs are in `dir` or below: QEMU's own log is kept of those only.
fn has_failures(dir: &Path) -> bool {
    let entries = dir.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        path.to_string_lossy().ends_with(".qemu.log") || path.is_dir() && has_failures(&path)
    })
}

/// Runs this program in the lab host and collects its findings.
fn in_lab_host(
    args: &CheckArgs,
    checks: &[Check],
    plan_host: &mut PlanHost,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let (preemptions, cycles) = (args.preemptions.to_string(), args.cycles.to_string());
    let length = format!("{}ms", args.length.as_millis());
    let seed = args.seed.map(|seed| seed.to_string());
    let names: Vec<String> = checks.iter().map(|&check| name(check)).collect();
    let mut command = vec!["check"];
    command.extend(names.iter().map(String::as_str));
    command.extend([
        "--guest-kernel",
        &args.guest_kernel,
        "--preemptions",
        &preemptions,
        "--cycles",
        &cycles,
        "--for",
        &length,
    ]);
    command.extend(seed.iter().flat_map(|seed| ["--seed", seed]));
    let limit = INSIDE_LIMIT.saturating_add(args.length.saturating_mul(2));
    let mut values = Vec::new();
    let ran = plan_host.run_inside(&command, limit, &mut |value| {
        values.push(value);
        Ok(())
    });
    for value in values {
        findings.push(serde_json::from_value(value)?);
    }
    Ok(ran?)
}

/// In a lab host: runs the checks and sends each finding.
fn inside(args: &CheckArgs, checks: &[Check], images: &str, cancel: &Cancel) -> Result<()> {
    let set: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = Logs::at(args.logs.as_deref().unwrap_or(Path::new("logs")))?;
    let kernel = &args.guest_kernel;
    let setup = GuestSetup::new(&set, kernel, Accel::Kvm, &logs.dir, &Messages, cancel)?;
    let ran = run(args, checks, &setup, &mut |finding| {
        // Also as a notice: results of a lab host that dies later are dropped.
        setup.progress.notice(&finding.to_string());
        Ok(Messages::send(&Message::Result { value: serde_json::to_value(finding)? })?)
    });
    logs.send()?;
    ran
}

/// Runs the checks and hands each finding to `found` as it comes.
fn run(
    args: &CheckArgs,
    checks: &[Check],
    setup: &GuestSetup,
    found: &mut dyn FnMut(Finding) -> Result<()>,
) -> Result<()> {
    for &check in checks {
        let finding = match check {
            _ if guard::CHECKS.contains(&check) && !Path::new(guard::STATE).exists() => {
                guard::refusal(check)
            }
            Check::Classes => classes::check(setup, args.preemptions),
            Check::Stopped => stopped::check(setup),
            Check::Grace => grace::check(setup),
            Check::Attach => attach::check(setup),
            Check::Cycles => cycles::check(setup, args.cycles),
            Check::Doctor => doctor::check(setup),
            Check::Program => guard::check_program(setup),
            Check::Guard => guard::check(setup),
            Check::GuardShare => guard::share::check(setup),
            Check::GuardLatency => guard::latency::check(setup),
            Check::Soak => soak::check(setup, args.length, args.seed),
        };
        found(finding.with_context(|| format!("check {}", name(check)))?)?;
    }
    Ok(())
}
