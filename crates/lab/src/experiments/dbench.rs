// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dbench`: [IPC] figure 7, `call_rcu()` latency under a file-server load.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;

pub struct Dbench;

impl Experiment for Dbench {
    fn name(&self) -> &'static str {
        "dbench"
    }

    fn summary(&self) -> &'static str {
        "the dbench program, one client per vCPU, on tmpfs; latency of call_rcu on every CPU"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs"
    }

    fn source(&self) -> &'static str {
        "[IPC] figure 7"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let (all, vcpus) = (size.all(), size.vcpus(options));
        let load = Workload::Dbench { clients: vcpus };
        // Each client keeps about 25 MiB of files, on top of the program's 24 MiB load file.
        let memory = size.work_memory(vcpus) + 128;
        Ok((vm("dbench", vcpus, &all, memory, load), hogs(vcpus, &all, size)))
    }

    fn callback_probe_hz(&self) -> u32 {
        100
    }
}
