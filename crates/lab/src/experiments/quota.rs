// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quota`, `quota-asym`: `churn` and `asym` under `cpu.max`, as Kubernetes limits CPU time.
//!
//! A VM that has used up its quota is off all CPUs until the next period begins, whatever its vCPUs
//! were doing, also alone on its host.

use super::guests::{asym, churn, hogs, limited};
use super::{Experiment, Options, Size, Vms};

pub const QUOTA: Experiment = Experiment {
    name: "quota",
    summary: "churn under a cpu.max of half of its CPUs, also alone",
    competition: "three hog VMs",
    source: "Kubernetes' CPU limits",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let subject = limited(churn(size, options));
    let others = hogs(subject.vcpus, &size.all(), size);
    Ok((subject, others))
}

pub const QUOTA_ASYM: Experiment = Experiment {
    name: "quota-asym",
    summary: "asym under a cpu.max of half of its CPUs, also alone",
    competition: "three hog VMs, all on the CPU of vCPU 0",
    source: "Kubernetes' CPU limits",
    vms: asym_vms,
    callback_probe_hz: 0,
};

fn asym_vms(size: &Size, options: &Options) -> Vms {
    let (subject, others) = asym(size, options);
    Ok((limited(subject), others))
}
