// SPDX-License-Identifier: MIT OR Apache-2.0
//! `clone`: [RP] experiment 2, figure 4.

use super::guests::vm;
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

pub const CLONE: Experiment = Experiment {
    name: "clone",
    summary: "clone() of children in new namespaces, in a loop on every vCPU",
    competition: "CPU hogs on half of the CPUs",
    source: "[RP] experiment 2",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, _: &Options) -> Vms {
    let all = size.all();
    let vcpus = all.len() as u32;
    let load = Workload::Clone { workers: vcpus };
    let subject = vm("clone", vcpus, &all, size.work_memory(vcpus), load);
    // The paper: 16 hogs in a VM of 16 vCPUs on 32 of the 64 CPUs.
    let hogs = size.quarter();
    let load = Workload::Hog { threads: hogs };
    let hog = vm("hog", hogs, &size.lower(), size.small_memory(hogs), load);
    Ok((subject, vec![hog]))
}
