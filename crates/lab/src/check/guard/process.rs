// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard in a process of its own, and the ways in which it ends.

use super::super::guest_setup::GuestSetup;
use super::{LIMIT, PROGRESS_NS, STATE, wait};
use crate::guard_process::GuardProcess;
use crate::limit::scaled;
use crate::vm::Vm;
use anyhow::{Context as _, Result, bail};
use reprieve_guard::{Policy, Statistics, VmStatistics};
use rustix::process::Signal;
use std::fs;

/// "S" ends a scheduler.
const SYSRQ: &str = "/proc/sysrq-trigger";

/// How guard ends.
#[derive(Clone, Copy, PartialEq)]
pub enum End {
    Signal,
    Kill,
    Kernel,
}

impl End {
    pub fn name(self) -> &'static str {
        match self {
            End::Signal => "ended",
            End::Kill => "killed",
            End::Kernel => "thrown out",
        }
    }
}

pub struct Guard {
    process: GuardProcess,
    /// What was reserved before guard.
    reserved: [String; 2],
}

/// The reservation for sched_ext on CPU 0.
fn reserved() -> [String; 2] {
    ["runtime", "period"].map(|file| {
        let path = format!("/sys/kernel/debug/sched/ext_server/cpu0/{file}");
        fs::read_to_string(path).unwrap_or_default()
    })
}

impl Guard {
    /// `reprieve guard`.
    pub fn start(setup: &GuestSetup, policy: Policy) -> Result<Guard> {
        Guard::run(setup, &["guard", "--policy", policy.name()])
    }

    /// This program with other arguments, which make it guard.
    pub fn run(setup: &GuestSetup, args: &[&str]) -> Result<Guard> {
        let reserved = reserved();
        let process = GuardProcess::start(args, scaled(LIMIT), setup.cancel)?;
        Ok(Guard { process, reserved })
    }

    /// # Errors
    /// When it no longer schedules.
    pub fn statistics(&mut self) -> Result<Statistics> {
        let statistics = self.process.statistics()?;
        match fs::read_to_string(STATE)?.trim() {
            "enabled" => Ok(statistics),
            state => bail!("guard runs, and sched_ext is {state}"),
        }
    }

    /// Waits for statistics that `are` what is wanted.
    pub fn until(
        &mut self,
        setup: &GuestSetup,
        what: &str,
        mut are: impl FnMut(&Statistics) -> Result<bool>,
    ) -> Result<Statistics> {
        let mut last = Statistics::default();
        let found = wait(setup, what, || {
            last = self.statistics()?;
            are(&last)
        });
        found.with_context(|| format!("guard's last statistics: {last:?}"))?;
        Ok(last)
    }

    /// Waits until guard has done for the VMs what the policy promises.
    pub fn work(&mut self, setup: &GuestSetup, policy: Policy, vms: &[Vm]) -> Result<Statistics> {
        self.until(setup, "guard's work", |now| {
            let cared_for =
                |vm: &Vm| of(now, vm).is_ok_and(|own| own.readable && own.on_cpu_ns >= PROGRESS_NS);
            let did = now.vms.iter().any(|vm| vm.did.extended.count > 0)
                && now.vms.iter().any(|vm| vm.did.rescued.count > 0);
            Ok(now.policy == policy
                && vms.iter().all(cared_for)
                && (did || policy == Policy::Plain))
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Ends guard, and waits until the stock scheduler is back.
    pub fn end(mut self, setup: &GuestSetup, end: End) -> Result<()> {
        match end {
            End::Signal => self.process.signal(Signal::INT),
            End::Kill => self.process.signal(Signal::KILL),
            End::Kernel => fs::write(SYSRQ, "S").context(SYSRQ)?,
        }
        let (status, said) = self.process.wait(scaled(LIMIT), setup.cancel)?;
        let right = match end {
            End::Signal => status.success(),
            End::Kill => status.code().is_none(),
            End::Kernel => status.code() == Some(1) && said.contains("stock scheduler is back"),
        };
        if !right {
            bail!("guard, {}, ended with {status}: {said}", end.name());
        }
        // After a kill, its supervisor gives back what was reserved.
        wait(setup, "the stock scheduler, with what is reserved as it was before guard", || {
            Ok(fs::read_to_string(STATE)?.trim() == "disabled" && reserved() == self.reserved)
        })
    }
}

/// The statistics of a VM.
pub fn of<'a>(statistics: &'a Statistics, vm: &Vm) -> Result<&'a VmStatistics> {
    let own = statistics.vms.iter().find(|own| own.pid == vm.threads().pid());
    own.with_context(|| format!("{} is not in guard's statistics", vm.name))
}
