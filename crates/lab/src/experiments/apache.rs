// SPDX-License-Identifier: MIT OR Apache-2.0
//! `apache`: MOSBENCH's web server, the real Apache, and its client, both in the guest.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

/// Connections per vCPU: enough that no worker waits for a client.
const CONNECTIONS: u32 = 16;

pub const APACHE: Experiment = Experiment {
    name: "apache",
    summary: "Apache and wrk, a page of 300 bytes over the loopback interface, a connection per request",
    competition: "three hog VMs",
    source: "[ECS], MOSBENCH",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let (all, vcpus) = (size.all(), size.vcpus(options));
    let load = Workload::Apache { connections: CONNECTIONS * vcpus };
    Ok((vm("apache", vcpus, &all, size.work_memory(vcpus), load), hogs(vcpus, &all, size)))
}
