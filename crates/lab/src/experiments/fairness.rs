// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fairness`: [ECS]'s question whether a VM that is in critical sections all the time gets more
//! than its share of the CPUs.
//!
//! Both VMs have a vCPU per CPU, want all of the CPU time, and are entitled to half of it. A
//! scheduler that lets critical sections finish has to take that time back later.

use super::guests::{holder, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::{Held, Workload};

/// Time in a section, µs: longer than a slice, so that every slice ends in one.
const HOLD_US: u32 = 10_000;

pub struct Fairness;

impl Experiment for Fairness {
    fn name(&self) -> &'static str {
        "fairness"
    }

    fn summary(&self) -> &'static str {
        "a file read in a loop on every vCPU; CPU seconds of 10 for each VM"
    }

    fn competition(&self) -> &'static str {
        "a VM whose vCPUs are in RCU readers all the time"
    }

    fn source(&self) -> &'static str {
        "[ECS] eventual fairness"
    }

    fn vms(&self, size: &Size, _: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let all = size.all();
        let vcpus = all.len() as u32;
        let load = Workload::FileRead { workers: vcpus };
        let subject = vm("reader", vcpus, &all, size.small_memory(vcpus) + 64, load);
        Ok((subject, vec![holder("holder", &all, size, Held::Reader, HOLD_US)]))
    }

    fn fair(&self) -> bool {
        true
    }
}
