// SPDX-License-Identifier: MIT OR Apache-2.0
//! `apache`: MOSBENCH's web server, the real Apache, and its client, both in the guest.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;

/// Connections per vCPU: enough that no worker waits for a client.
const CONNECTIONS: u32 = 16;

pub struct Apache;

impl Experiment for Apache {
    fn name(&self) -> &'static str {
        "apache"
    }

    fn summary(&self) -> &'static str {
        "Apache and wrk, a page of 300 bytes over the loopback interface, a connection per request"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs"
    }

    fn source(&self) -> &'static str {
        "[ECS], MOSBENCH"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let (all, vcpus) = (size.all(), size.vcpus(options));
        let load = Workload::Apache { connections: CONNECTIONS * vcpus };
        Ok((vm("apache", vcpus, &all, size.work_memory(vcpus), load), hogs(vcpus, &all, size)))
    }
}
