// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lowweight`: a VM of little weight (a burstable or best-effort VM) beside VMs of the normal one.
//!
//! The VMs are those of `asym`. vCPU 0 gets a small part of its CPU and is off it for many slices
//! at a time, while the garbage of vCPU 1 waits for it.

use super::guests::asym;
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

/// `cpu.weight`, of 100.
const WEIGHT: u32 = 10;

pub struct LowWeight;

impl Experiment for LowWeight {
    fn name(&self) -> &'static str {
        "lowweight"
    }

    fn summary(&self) -> &'static str {
        "asym in a VM of cpu.weight 10"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs of cpu.weight 100, all on the CPU of vCPU 0"
    }

    fn source(&self) -> &'static str {
        "ours"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let (mut subject, others) = asym(size, options);
        subject.name = "lowweight".into();
        subject.cgroup.weight = WEIGHT;
        Ok((subject, others))
    }
}
