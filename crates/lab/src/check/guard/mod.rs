// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` schedules real VMs under each of its policies, and the stock scheduler is back
//! afterwards: after a signal, after the kernel threw guard out, and after a kill that leaves it no
//! time. Nobody is stuck then, and nothing stays reserved. It goes on while its host changes. Where
//! the kernel has no sched_ext, `guard` says so and changes nothing.

mod changes;
pub(super) mod latency;
pub(super) mod many;
pub mod player;
mod process;
pub(super) mod share;

use super::bpf_objects::verified_by;
use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use crate::limit::scaled;
use crate::vm::Vm;
use anyhow::{Context as _, Result, bail};
pub use process::{End, Guard};
use reprieve_guard::Policy;
use reprieve_init::protocol::{Command, Workload};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

pub const STATE: &str = "/sys/kernel/sched_ext/state";

/// How long anything may take that is waited for here.
const LIMIT: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(50);

/// CPU time that each VM has to get under each policy, and after guard was killed.
const PROGRESS_NS: u64 = 300_000_000;

/// Policies, and how each run ends.
const RUNS: [(Policy, End); 3] =
    [(Policy::Plain, End::Kernel), (Policy::Full, End::Signal), (Policy::Full, End::Kill)];

/// Without VMs, so that it is short.
pub(super) fn check_program(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::Program);
    }
    setup.progress.step("loading guard");
    let began = Instant::now();
    let guard = Guard::start(setup, Policy::Full)?;
    let seconds = began.elapsed().as_secs_f64();
    let verified = verified_by(guard.pid())?;
    guard.end(setup, End::Signal)?;
    let (all, most) = (verified.iter().sum::<u64>(), verified.iter().max());
    let text = format!(
        "  loaded in {seconds:.1} s, and ended; the verifier looked at {all} instructions, {} of \
         them in one of {} functions that the kernel calls\n",
        most.copied().unwrap_or(0),
        verified.len()
    );
    let figures = json!({ "seconds": seconds, "verified": verified });
    Ok(Finding::new(Check::Program, true, text, figures))
}

pub(super) fn check(setup: &GuestSetup) -> Result<Finding> {
    if !Path::new(STATE).exists() {
        return refusal(Check::Guard);
    }
    let mut vms = Vec::new();
    let churn = Workload::FileChurn { workers: 2 };
    for (name, workload) in [("churn", churn), ("hog", Workload::Hog { threads: 2 })] {
        let mut vm = setup.boot(name, 2, 256, "")?;
        setup.prepare(&mut vm, workload, None)?;
        setup.call(&mut vm, &Command::Start)?;
        vms.push(vm);
    }
    let mut text = String::new();
    let mut figures = Vec::new();
    for line in changes::check(setup, &vms).context("changes of the host")? {
        writeln!(text, "  {line}")?;
    }
    for (policy, end) in RUNS {
        setup.progress.step(&format!("guard --policy {}", policy.name()));
        let mut guard = Guard::start(setup, policy)?;
        let statistics = guard.work(setup, policy, &vms)?;
        guard.end(setup, end)?;
        progress(setup, &vms).context("after guard ended")?;
        writeln!(
            text,
            "  {}: {}, stock scheduler back; {} slices extended, {} vCPUs rescued",
            policy.name(),
            end.name(),
            statistics.vms.iter().map(|vm| vm.extended.count).sum::<u64>(),
            statistics.vms.iter().map(|vm| vm.rescued.count).sum::<u64>(),
        )?;
        figures.push(statistics);
    }
    for vm in &mut vms {
        setup.read(vm, "/proc/uptime").context("a guest afterwards")?;
    }
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    Ok(Finding::new(Check::Guard, true, text, json!({ "runs": figures })))
}

fn refusal(check: Check) -> Result<Finding> {
    let (said, refused) = Guard::refusal()?;
    let passed = refused && said.contains("sched_ext");
    let text = format!("  this kernel has no sched_ext; guard said: {said}\n");
    Ok(Finding::new(check, passed, text, json!({ "refused": said })))
}

/// Waits until each VM has run for some time.
pub fn progress<'a>(setup: &GuestSetup, vms: impl IntoIterator<Item = &'a Vm>) -> Result<()> {
    let vms: Vec<&Vm> = vms.into_iter().collect();
    let ran = || vms.iter().map(|vm| vm.threads().vcpu_counters().run_ns);
    let goal: Vec<u64> = ran().map(|ns| ns + PROGRESS_NS).collect();
    wait(setup, "each VM to run", || {
        Ok(ran().zip(&goal).all(|(ns, &goal)| ns >= goal).then_some(()))
    })
}

fn wait<T>(
    setup: &GuestSetup,
    what: &str,
    mut there: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + scaled(LIMIT);
    loop {
        if let Some(found) = there()? {
            return Ok(found);
        }
        if Instant::now() > end {
            bail!("waited in vain for {what}");
        }
        setup.sleep(NAP)?;
    }
}
