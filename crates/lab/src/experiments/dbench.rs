// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dbench`: [IPC] figure 7, `call_rcu()` latency under a file-server load.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

pub const DBENCH: Experiment = Experiment {
    name: "dbench",
    summary: "the dbench program, one client per vCPU, on tmpfs; latency of call_rcu on every CPU",
    competition: "three hog VMs",
    source: "[IPC] figure 7",
    vms,
    callback_probe_hz: 100,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let (all, vcpus) = (size.all(), size.vcpus(options));
    let load = Workload::Dbench { clients: vcpus };
    // Each client keeps about 25 MiB of files, on top of the program's 24 MiB load file.
    let memory = size.work_memory(vcpus) + 128;
    Ok((vm("dbench", vcpus, &all, memory, load), hogs(vcpus, &all, size)))
}
