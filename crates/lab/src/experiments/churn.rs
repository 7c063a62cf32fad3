// SPDX-License-Identifier: MIT OR Apache-2.0
//! `churn`: files created and removed in a loop; a simple load for comparing guest settings.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;

pub struct Churn;

impl Experiment for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn summary(&self) -> &'static str {
        "a file created and removed on tmpfs, in a loop on every vCPU"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs"
    }

    fn source(&self) -> &'static str {
        "ours"
    }

    fn vms(&self, size: &Size, _: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let all = size.all();
        let vcpus = all.len() as u32;
        let load = Workload::FileChurn { workers: vcpus };
        Ok((vm("churn", vcpus, &all, size.work_memory(vcpus), load), hogs(vcpus, &all, size)))
    }
}
