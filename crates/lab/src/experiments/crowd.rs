// SPDX-License-Identifier: MIT OR Apache-2.0
//! `crowd`: 8 to 16 runnable vCPUs per CPU, so that a vCPU waits for long until its turn comes.
//!
//! Per CPU there are a vCPU of `churn` and seven of hog VMs. On 2 CPUs the two bursty VMs add up to
//! eight, on larger hosts fewer.

use super::guests::{bursty, churn, some_hogs, vm};
use super::{Experiment, Options, Size, Vms};

/// VMs with a vCPU per CPU.
const HOGS: u32 = 7;

/// vCPUs of a bursty VM.
const BURSTY: u32 = 8;

pub const CROWD: Experiment = Experiment {
    name: "crowd",
    summary: "churn as one of many: 8 to 16 runnable vCPUs per CPU",
    competition: "seven hog VMs, and two bursty VMs of 8 vCPUs",
    source: "ours",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let all = size.all();
    let mut others = some_hogs(HOGS, all.len() as u32, &all, size);
    others.extend((1..=2).map(|i| {
        let load = bursty(BURSTY, options.seed.wrapping_add(i));
        vm(&format!("bursty{i}"), BURSTY, &all, size.small_memory(BURSTY), load)
    }));
    Ok((churn(size, options), others))
}
