// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard` schedules real VMs under each of its policies, and the stock scheduler is back
//! afterwards: after a signal, after the kernel threw guard out, and after a kill that leaves it no
//! time. Nobody is stuck then, and nothing stays reserved. It goes on while its host changes. Where
//! the kernel has no sched_ext, `guard` says so and changes nothing.

mod changes;
pub(super) mod latency;
pub mod player;
mod process;
pub(super) mod share;

use super::bpf_objects::verified_by;
use super::guest_setup::GuestSetup;
use super::load::set_policy;
use super::{Check, Finding};
use crate::guard_process::own_command;
use crate::vm::Vm;
use anyhow::{Context as _, Result, bail};
use changes::{SCHED_EXT, policy_of};
pub use process::{End, Guard};
use reprieve_guard::Policy;
use reprieve_init::protocol::Workload;
use serde_json::json;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

pub const STATE: &str = "/sys/kernel/sched_ext/state";

/// Checks that pass without sched_ext if guard refuses.
pub(super) const CHECKS: [Check; 4] =
    [Check::Program, Check::Guard, Check::GuardShare, Check::GuardLatency];

/// How long anything may take that is waited for here.
const LIMIT: Duration = Duration::from_secs(60);

/// CPU time that each VM has to get under each policy, and after guard was killed.
const PROGRESS_NS: u64 = 300_000_000;

/// Policies, and how each run ends.
const RUNS: [(Policy, End); 3] =
    [(Policy::Plain, End::Kernel), (Policy::Full, End::Signal), (Policy::Full, End::Kill)];

/// Without VMs, so that it is short.
pub(super) fn check_program(setup: &GuestSetup) -> Result<Finding> {
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
    let mut vms = Vec::new();
    let churn = Workload::FileChurn { workers: 2 };
    for (name, workload) in [("churn", churn), ("hog", Workload::Hog { threads: 2 })] {
        let mut vm = setup.boot(name, 2, 256, "")?;
        setup.start(&mut vm, workload)?;
        vms.push(vm);
    }
    let urgent = setup.boot("urgent", 1, 192, "")?;
    let [fifo, ordinary] = [&urgent, &vms[0]].map(|vm| vm.threads().vcpus()[0]);
    set_policy(fifo, libc::SCHED_FIFO, 1)?;
    let (mut text, mut figures) = (String::new(), Vec::new());
    for (policy, end) in RUNS {
        setup.progress.step(&format!("guard --policy {}", policy.name()));
        let mut guard = Guard::start(setup, policy)?;
        let statistics = guard.work(setup, policy, &vms)?;
        let mut policies = vec![policy_of(fifo), policy_of(ordinary)];
        if end == End::Signal {
            text += changes::check(setup, &mut guard, &vms)?;
        }
        guard.end(setup, end)?;
        progress(setup, &vms).context("after guard ended")?;
        policies.extend([policy_of(fifo), policy_of(ordinary)]);
        // After a kill, vCPUs keep SCHED_EXT, which the stock scheduler takes for SCHED_OTHER.
        let after = if end == End::Kill { SCHED_EXT } else { libc::SCHED_OTHER };
        if policies != [libc::SCHED_FIFO, SCHED_EXT, libc::SCHED_FIFO, after] {
            bail!("a real-time vCPU and an ordinary one have the policies {policies:?}");
        }
        writeln!(
            text,
            "  {}: {}, stock scheduler back; {} slices extended, {} vCPUs rescued",
            policy.name(),
            end.name(),
            statistics.vms.iter().map(|vm| vm.did.extended.count).sum::<u64>(),
            statistics.vms.iter().map(|vm| vm.did.rescued.count).sum::<u64>(),
        )?;
        figures.push(statistics);
    }
    vms.push(urgent);
    for vm in &mut vms {
        setup.read(vm, "/proc/uptime").context("a guest afterwards")?;
    }
    vms.into_iter().for_each(|vm| vm.shut_down(setup.cancel));
    Ok(Finding::new(Check::Guard, true, text, json!({ "runs": figures })))
}

/// On a host without sched_ext: whether guard says so in one line, with status 1.
pub(super) fn refusal(check: Check) -> Result<Finding> {
    let output = own_command()?.args(["guard", "--for", "1s"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let passed =
        output.status.code() == Some(1) && said.lines().count() == 1 && said.contains("sched_ext");
    let text = format!("  this kernel has no sched_ext; guard said: {said}\n");
    Ok(Finding::new(check, passed, text, json!({ "refused": said })))
}

/// Waits until each VM has run for some time.
pub fn progress<'a>(setup: &GuestSetup, vms: impl IntoIterator<Item = &'a Vm>) -> Result<()> {
    let vms: Vec<&Vm> = vms.into_iter().collect();
    let ran = || vms.iter().map(|vm| vm.threads().vcpu_counters().run_ns);
    let goal: Vec<u64> = ran().map(|ns| ns + PROGRESS_NS).collect();
    wait(setup, "each VM to run", || Ok(ran().zip(&goal).all(|(ns, &goal)| ns >= goal)))
}

fn wait(setup: &GuestSetup, what: &str, is: impl FnMut() -> Result<bool>) -> Result<()> {
    match setup.wait_until(LIMIT, is)? {
        true => Ok(()),
        false => bail!("waited in vain for {what}"),
    }
}
