// SPDX-License-Identifier: MIT OR Apache-2.0
//! `churn`: files created and removed in a loop; a simple load for comparing guest settings.

use super::guests::{churn, hogs};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

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

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let subject = churn(size, options);
        let others = hogs(subject.vcpus, &size.all(), size);
        Ok((subject, others))
    }
}
