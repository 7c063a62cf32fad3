// SPDX-License-Identifier: MIT OR Apache-2.0
//! `reprieve lab check`: whether `reprieve watch` sees what guests really do.
//!
//! A guest is made to do something that is known: the kernel module `reprieve_hold` keeps a vCPU in an RCU reader, its own tracing times its grace
//! periods. What `watch` says is compared with that. The checks run on this machine or, with `--host nested`, in a lab host: there this program
//! starts itself again and passes the findings out.

mod attach;
mod classes;
mod cost;
mod cycles;
mod doctor;
mod grace;
mod load;
mod stage;
mod stopped;

use super::HostArg;
use crate::output::{print, print_json};
use crate::progress::{self, Messages};
use crate::signals::cancel_on_signal;
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use reprieve_lab::host::{Carrier, Message, Setting};
use reprieve_lab::images::{ImageSet, Images, Program};
use reprieve_lab::process::Cancel;
use reprieve_lab::progress::Progress;
use reprieve_lab::vm::Accel;
use serde::{Deserialize, Serialize};
use stage::Stage;
use std::fmt;
use std::time::Duration;

/// The longest that the checks may take in a lab host.
const INSIDE_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args)]
pub struct CheckArgs {
    /// What to check [default: all]
    #[arg(value_enum)]
    checks: Vec<Check>,
    /// Where the guests run
    #[arg(long, value_enum, default_value = "auto")]
    host: HostArg,
    /// Kernel of the guests: deb:VERSION or the path of a vmlinuz with its modules and headers
    #[arg(long, default_value = super::DEFAULT_KERNEL)]
    guest_kernel: String,
    /// Kernel of the lab host: deb:VERSION or a path
    #[arg(long)]
    host_kernel: Option<String>,
    /// Preemptions of each vCPU that `classes` waits for
    #[arg(long, default_value_t = 300)]
    preemptions: u64,
    /// How often `cycles` attaches
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    cycles: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// In a lab host: its images
    #[arg(long, hide = true)]
    images: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// vCPUs kept in each class are classed right
    Classes,
    /// A vCPU that is stopped in a reader is named within a second, with the reader's function
    Stopped,
    /// Grace periods last as long from outside as from inside
    Grace,
    /// Attaching is quick and leaves the memory use of a big VM as it was
    Attach,
    /// Attaching and detaching again and again leaves nothing behind
    Cycles,
    /// What watching costs where vCPUs come and go ten thousand times a second, beside what is promised
    Cost,
    /// What `doctor --vm` says of a guest is what the guest's own kernel says
    Doctor,
}

/// What a check found.
#[derive(Serialize, Deserialize)]
struct Finding {
    check: String,
    passed: bool,
    /// For people, in lines.
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
    let all = Check::value_variants();
    let checks = if args.checks.is_empty() { all } else { &args.checks };
    let cancel = cancel_on_signal()?;
    if let Some(images) = &args.images {
        return inside(args, checks, images, &cancel);
    }
    let progress = progress::for_stderr();
    let findings = outside(args, checks, &*progress, &cancel);
    progress.finish();
    let findings = findings?;
    if args.json {
        print_json(&findings)?;
    } else {
        for finding in &findings {
            print(&format!("{finding}\n"))?;
        }
    }
    let failed: Vec<&str> =
        findings.iter().filter(|f| !f.passed).map(|f| f.check.as_str()).collect();
    if !failed.is_empty() {
        bail!("not as it should be: {}", failed.join(", "));
    }
    Ok(())
}

/// On the machine that the user sees.
fn outside(
    args: &CheckArgs,
    checks: &[Check],
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Vec<Finding>> {
    let logs = tempfile::tempdir().context("log directory")?;
    let images = Images::open(cancel, progress)?;
    let kernel = &args.guest_kernel;
    let set = images.prepare(std::slice::from_ref(kernel), &[Program::Hold])?;
    let setting = Setting { set: &set, logs: logs.path(), progress, cancel, watcher: None };
    let memory = if checks.contains(&Check::Attach) { attach::MEMORY_MIB } else { 1024 };
    let host_kernel = args.host_kernel.as_deref();
    let mut carrier = Carrier::new(args.host.mode(), &images, host_kernel, memory, setting)?;
    let findings = match carrier.direct() {
        Some(accel) => {
            let stage = Stage::new(&set, kernel, accel, logs.path(), progress, cancel)?;
            let mut findings = Vec::new();
            run(args, checks, &stage, &mut |finding| {
                findings.push(finding);
                Ok(())
            })
            .map(|()| findings)
        }
        None => in_lab_host(args, checks, &mut carrier),
    };
    carrier.shut_down();
    findings
}

/// In a lab host, from outside.
fn in_lab_host(args: &CheckArgs, checks: &[Check], carrier: &mut Carrier) -> Result<Vec<Finding>> {
    let (preemptions, cycles) = (args.preemptions.to_string(), args.cycles.to_string());
    let names: Vec<String> = checks.iter().map(|&check| name(check)).collect();
    let mut command = vec!["lab", "check"];
    command.extend(names.iter().map(String::as_str));
    command.extend([
        "--guest-kernel",
        &args.guest_kernel,
        "--preemptions",
        &preemptions,
        "--cycles",
        &cycles,
    ]);
    let mut findings = Vec::new();
    carrier.run_inside(&command, INSIDE_LIMIT, &mut |value| {
        findings.push(value);
        Ok(())
    })?;
    findings.into_iter().map(|value| Ok(serde_json::from_value(value)?)).collect()
}

/// In a lab host, inside.
fn inside(args: &CheckArgs, checks: &[Check], images: &str, cancel: &Cancel) -> Result<()> {
    let set: ImageSet = serde_json::from_str(images).context("--images")?;
    let logs = tempfile::tempdir().context("log directory")?;
    let kernel = &args.guest_kernel;
    let stage = Stage::new(&set, kernel, Accel::Kvm, logs.path(), &Messages, cancel)?;
    run(args, checks, &stage, &mut |finding| {
        // Told at once, too: what was found before a lab host died would not be known otherwise.
        stage.progress.notice(&finding.to_string());
        Ok(Messages::send(&Message::Result { value: serde_json::to_value(finding)? })?)
    })
}

/// Carries out the checks, handing each finding to `found` as it comes.
fn run(
    args: &CheckArgs,
    checks: &[Check],
    stage: &Stage,
    found: &mut dyn FnMut(Finding) -> Result<()>,
) -> Result<()> {
    for &check in checks {
        let finding = match check {
            Check::Classes => classes::check(stage, args.preemptions),
            Check::Stopped => stopped::check(stage),
            Check::Grace => grace::check(stage),
            Check::Attach => attach::check(stage),
            Check::Cycles => cycles::check(stage, args.cycles),
            Check::Cost => cost::check(stage),
            Check::Doctor => doctor::check(stage),
        };
        found(finding.with_context(|| format!("check {}", name(check)))?)?;
    }
    Ok(())
}
