// SPDX-License-Identifier: MIT OR Apache-2.0
//! A dry run of the scheduler: [`Watch`] observes the VMs under the scheduler that is in force, and
//! `tally` says what guard's policies would have acted on. Nothing is scheduled otherwise, so it
//! works on kernels without sched_ext as well.
//!
//! Guard classifies a vCPU by the code that `watch` has, so both see the same sections. But they
//! look at other moments: guard's slices end at other times than those of the scheduler in force.

mod tally;

use crate::backend::Guard;
use crate::constants::LATE_NS;
use crate::error::Error;
use crate::options::{Backend, Change, MAX_EXTEND, Options};
use crate::statistics::Statistics;
use reprieve_watch::Watch;
use reprieve_watch::model::VmState;
use reprieve_watch::raw::clock;
use std::collections::BTreeMap;
use std::time::Duration;
use tally::Tally;

pub struct DryRun {
    watch: Watch,
    options: Options,
    /// By process.
    vms: BTreeMap<u32, Tally>,
    started_ns: u64,
    process_ns: u64,
}

impl DryRun {
    /// # Errors
    /// Without the rights to watch, or on a kernel without BTF.
    pub fn start(options: &Options) -> Result<DryRun, Error> {
        let process_ns = clock::process_ns();
        let watch = Watch::start(&reprieve_watch::Options {
            vms: options.vms.clone(),
            interval: options.interval,
            late: options.policy.rescues().then_some(Duration::from_nanos(LATE_NS as u64)),
            ..reprieve_watch::Options::default()
        })?;
        let (options, started_ns) = (options.clone(), clock::now_ns());
        Ok(DryRun { watch, options, vms: BTreeMap::new(), started_ns, process_ns })
    }
}

impl Guard for DryRun {
    fn statistics(&mut self) -> Result<Statistics, Error> {
        let snapshot = self.watch.snapshot()?;
        let present = || snapshot.vms.iter().filter(|vm| vm.state != VmState::Gone);
        self.vms.retain(|pid, _| present().any(|vm| vm.pid == *pid));
        let policy = self.options.policy;
        let max_extend_ns = u64::try_from(MAX_EXTEND.as_nanos()).unwrap_or(u64::MAX);
        let vms = present().map(|vm| {
            let tally = self.vms.entry(vm.pid).or_default();
            tally.note(vm);
            tally.statistics(vm, policy, max_extend_ns)
        });
        Ok(Statistics {
            time_ns: snapshot.time_ns,
            elapsed_ns: snapshot.time_ns.saturating_sub(self.started_ns),
            dry_run: true,
            vms: vms.collect(),
            process_ns: clock::process_ns().saturating_sub(self.process_ns),
            ..Statistics::new(Backend::SchedExt, policy)
        })
    }

    fn set(&mut self, _: Option<&str>, _: &Change) -> Result<Vec<String>, Error> {
        Err(Error::DryRun)
    }

    fn ended(&mut self) -> Option<String> {
        None
    }
}
