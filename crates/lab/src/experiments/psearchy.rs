// SPDX-License-Identifier: MIT OR Apache-2.0
//! `psearchy`: MOSBENCH's parallel indexer of files, threads of one address space.
//!
//! Its threads wait for each other at the lock of their address space and at those of the index: a
//! preempted vCPU stops others here as well, not only grace periods.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

/// Threads per vCPU.
const THREADS: u32 = 4;

/// Files of the corpus, of 34 KiB on average.
const FILES: u32 = 1024;

pub const PSEARCHY: Experiment = Experiment {
    name: "psearchy",
    summary: "files on tmpfs mapped and indexed by four threads per vCPU",
    competition: "three hog VMs",
    source: "MOSBENCH",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    let (all, vcpus) = (size.all(), size.vcpus(options));
    let threads = THREADS * vcpus;
    let load = Workload::Psearchy { threads, files: FILES, seed: options.seed };
    let subject = vm("psearchy", vcpus, &all, size.work_memory(vcpus), load);
    Ok((subject, hogs(vcpus, &all, size)))
}
