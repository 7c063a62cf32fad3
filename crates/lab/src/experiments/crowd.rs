// SPDX-License-Identifier: MIT OR Apache-2.0
//! `crowd`: 8 to 16 runnable vCPUs per CPU, so that a vCPU waits for long until its turn comes.
//!
//! Per CPU there are a vCPU of `churn` and seven of hog VMs. On 2 CPUs the two bursty VMs add up to
//! eight, on larger hosts fewer.

use super::guests::{bursty, churn, some_hogs, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

/// VMs with a vCPU per CPU.
const HOGS: u32 = 7;

/// vCPUs of a bursty VM.
const BURSTY: u32 = 8;

pub struct Crowd;

impl Experiment for Crowd {
    fn name(&self) -> &'static str {
        "crowd"
    }

    fn summary(&self) -> &'static str {
        "churn as one of many: 8 to 16 runnable vCPUs per CPU"
    }

    fn competition(&self) -> &'static str {
        "seven hog VMs, and two bursty VMs of 8 vCPUs"
    }

    fn source(&self) -> &'static str {
        "ours"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let all = size.all();
        let mut others = some_hogs(HOGS, all.len() as u32, &all, size);
        others.extend((1..=2).map(|i| {
            let load = bursty(BURSTY, options.seed.wrapping_add(i));
            vm(&format!("bursty{i}"), BURSTY, &all, size.small_memory(BURSTY), load)
        }));
        Ok((churn(size, options), others))
    }
}
