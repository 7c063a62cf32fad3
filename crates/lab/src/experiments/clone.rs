// SPDX-License-Identifier: MIT OR Apache-2.0
//! `clone`: [RP] experiment 2, figure 4.

use super::guests::vm;
use super::{Experiment, Options, Size, Vms};
use crate::error::Error;
use reprieve_init::protocol::Workload;

pub const CLONE: Experiment = Experiment {
    name: "clone",
    summary: "clone() of children in new namespaces, in a loop on every vCPU",
    competition: "CPU hogs on half of the CPUs",
    source: "[RP] experiment 2",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    if options.namespaces.is_empty() {
        return Err(Error::Usage("--namespaces is empty: name at least one".into()));
    }
    let all = size.all();
    let vcpus = all.len() as u32;
    let namespaces = options.namespaces.clone();
    let load = Workload::Clone { workers: vcpus, namespaces };
    let subject = vm("clone", vcpus, &all, size.work_memory(vcpus), load);
    // The paper: 16 hogs in a VM of 16 vCPUs on 32 of the 64 CPUs.
    let hogs = size.quarter();
    let load = Workload::Hog { threads: hogs };
    let hog = vm("hog", hogs, &size.lower(), size.small_memory(hogs), load);
    Ok((subject, vec![hog]))
}
