// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quota`, `quota-asym`: `churn` and `asym` under `cpu.max`, as Kubernetes limits CPU time.
//!
//! A VM that has used up its quota is off all CPUs until the next period begins, whatever its vCPUs
//! were doing, also alone on its host.

use super::guests::{asym, churn, hogs, limited};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

pub struct Quota;

impl Experiment for Quota {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn summary(&self) -> &'static str {
        "churn under a cpu.max of half of its CPUs, also alone"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs"
    }

    fn source(&self) -> &'static str {
        "Kubernetes' CPU limits"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let subject = limited(churn(size, options));
        let others = hogs(subject.vcpus, &size.all(), size);
        Ok((subject, others))
    }
}

pub struct QuotaAsym;

impl Experiment for QuotaAsym {
    fn name(&self) -> &'static str {
        "quota-asym"
    }

    fn summary(&self) -> &'static str {
        "asym under a cpu.max of half of its CPUs, also alone"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs, all on the CPU of vCPU 0"
    }

    fn source(&self) -> &'static str {
        "Kubernetes' CPU limits"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let (subject, others) = asym(size, options);
        Ok((limited(subject), others))
    }
}
