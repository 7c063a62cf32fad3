// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fairness`: [ECS]'s question whether a VM that is in critical sections all the time gets more
//! than its share of the CPUs.
//!
//! Both VMs have a vCPU per CPU, want all of the CPU time, and are entitled to half of it. A
//! scheduler that lets critical sections finish has to take that time back later.

use super::guests::{holder, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::{Held, Workload};

/// Time in a section, µs: longer than a slice, so that every slice ends in one.
const HOLD_US: u32 = 10_000;

pub const FAIRNESS: Experiment = Experiment {
    name: "fairness",
    summary: "a file read in a loop on every vCPU; CPU seconds of 10 for each VM",
    competition: "a VM whose vCPUs are in RCU readers all the time",
    source: "[ECS] eventual fairness",
    vms,
    fair: true,
    ..Experiment::NONE
};

fn vms(size: &Size, _: &Options) -> Vms {
    let all = size.all();
    let vcpus = all.len() as u32;
    let load = Workload::FileRead { workers: vcpus };
    let subject = vm("reader", vcpus, &all, size.small_memory(vcpus) + 64, load);
    Ok((subject, vec![holder("holder", &all, size, Held::Reader, HOLD_US)]))
}
