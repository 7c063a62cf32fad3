// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the lab's policies into force: by `reprieve guard` on the host where the VMs run, or, for
//! fixed slices, by the system call that an administrator would use.

use crate::guard_process::GuardProcess;
use crate::policy::{Need, Policy};
use crate::process::Cancel;
use crate::scheduler::{InForce, Scheduler, Target};
use reprieve_guard::undo::slice;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

pub struct HostScheduler;

impl Scheduler for HostScheduler {
    fn check(&self, policy: &Policy) -> Result<(), String> {
        no_scheduler()?;
        match policy.need() {
            Need::Nothing => Ok(()),
            Need::CustomSlices => slice::supported(),
            Need::SchedExt if Path::new("/sys/kernel/sched_ext").exists() => Ok(()),
            Need::SchedExt => {
                let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
                Err(format!(
                    "this host's kernel ({}) has no sched_ext (CONFIG_SCHED_CLASS_EXT): use --host nested, or the policies eevdf and eevdf-slices",
                    release.unwrap_or_default().trim()
                ))
            }
        }
    }

    fn apply(
        &self,
        policy: &Policy,
        target: Target,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Box<dyn InForce>, String> {
        // Another one may have come since the last phase.
        no_scheduler()?;
        match policy {
            Policy::Eevdf => Ok(Box::new(FixedSlices::default())),
            Policy::Slices(slice) => {
                let all = [target.vcpus, target.others].concat();
                Ok(Box::new(FixedSlices::set(&all, *slice)?))
            }
            Policy::Guard(name) => {
                // A kernel without slices reports none.
                let slice = |&tid: &u32| Some((tid, slice::get(tid).ok()?));
                let slices = target.vcpus.iter().filter_map(slice).collect();
                let args = ["guard", "--policy", name];
                let process = GuardProcess::start(&args, limit, cancel);
                Ok(Box::new(Guard { process: process.map_err(told)?, slices }))
            }
        }
    }
}

/// Whether the stock scheduler is in charge.
fn no_scheduler() -> Result<(), String> {
    match reprieve_guard::loaded_scheduler() {
        Some(other) => Err(format!("{other}, which figures would be of: stop it")),
        None => Ok(()),
    }
}

/// Slices of the VMs' vCPUs, as they were before.
#[derive(Default)]
struct FixedSlices(Vec<(u32, Duration)>);

impl FixedSlices {
    fn set(threads: &[u32], slice: Duration) -> Result<FixedSlices, String> {
        let failed = |tid: u32| move |error| format!("the slice of vCPU thread {tid}: {error}");
        let mut set = FixedSlices::default();
        for &tid in threads {
            set.0.push((tid, slice::get(tid).map_err(failed(tid))?));
            slice::set(tid, Some(slice)).map_err(failed(tid))?;
            let got = slice::get(tid).map_err(failed(tid))?;
            if got != slice {
                return Err(format!(
                    "vCPU thread {tid} has a slice of {got:?} instead of {slice:?}"
                ));
            }
        }
        Ok(set)
    }
}

impl InForce for FixedSlices {
    fn report(&mut self) -> Result<Option<Value>, String> {
        no_scheduler().map_err(|why| format!("at the end of the phase, {why}")).map(|()| None)
    }

    fn end(mut self: Box<Self>, _: Duration) -> Result<(), String> {
        for (tid, before) in std::mem::take(&mut self.0) {
            let restored = slice::set(tid, None).and_then(|()| slice::get(tid));
            let failed = |error| format!("the slice of vCPU thread {tid} is not restored: {error}");
            let now = restored.map_err(failed)?;
            if now != before {
                return Err(failed(std::io::Error::other(format!("it is {now:?}"))));
            }
        }
        Ok(())
    }
}

impl Drop for FixedSlices {
    fn drop(&mut self) {
        for (tid, _) in &self.0 {
            // The VM may be gone.
            let _ = slice::set(*tid, None);
        }
    }
}

/// `reprieve guard` in force.
struct Guard {
    process: GuardProcess,
    /// The tested guest's vCPUs with the slices that they had before.
    slices: Vec<(u32, Duration)>,
}

impl InForce for Guard {
    fn report(&mut self) -> Result<Option<Value>, String> {
        let statistics = self.process.statistics().map_err(told)?;
        serde_json::to_value(statistics).map(Some).map_err(|error| error.to_string())
    }

    fn end(mut self: Box<Self>, limit: Duration) -> Result<(), String> {
        self.process.statistics().map_err(told)?;
        self.process.signal(Signal::TERM);
        let (status, said) = self.process.wait(limit, &Cancel::default()).map_err(told)?;
        if !status.success() {
            return Err(format!("guard did not end well ({status}): {said}"));
        }
        no_scheduler().map_err(|why| format!("after guard has ended, {why}"))?;
        for (tid, before) in &self.slices {
            match slice::get(*tid) {
                Ok(now) if now != *before => {
                    return Err(format!(
                        "guard left vCPU thread {tid} with a slice of {now:?} instead of {before:?}"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn told(error: anyhow::Error) -> String {
    format!("{error:#}")
}
