// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lowweight`: a VM of little weight (a burstable or best-effort VM) beside VMs of the normal one.
//!
//! The VMs are those of `asym`. vCPU 0 gets a small part of its CPU and is off it for many slices
//! at a time, while the garbage of vCPU 1 waits for it.

use super::guests::asym;
use super::{Experiment, Options, Size, Vms};

/// `cpu.weight`, of 100.
const WEIGHT: u32 = 10;

pub const LOWWEIGHT: Experiment = Experiment {
    name: "lowweight",
    summary: "asym in a VM of cpu.weight 10",
    competition: "three hog VMs of cpu.weight 100, all on the CPU of vCPU 0",
    source: "ours",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let (mut subject, others) = asym(size, options);
    subject.name = "lowweight".into();
    subject.cgroup.weight = WEIGHT;
    Ok((subject, others))
}
