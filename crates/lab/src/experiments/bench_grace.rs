// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench-grace`: the grace periods of programs, not of the kernel, inside an overcommitted VM.
//!
//! The guest runs `reprieve bench grace`. A membarrier interrupts every CPU on which the program
//! runs, so it waits for a vCPU that the hypervisor has preempted: the restartable grace period,
//! too, depends on vCPU preemption. Other kinds of grace periods depend on it through their
//! readers, for as long. The number of readers separates the two kinds of preemption: with one
//! reader per vCPU (the writer has a vCPU, too) only the hypervisor preempts; with eight times as
//! many the guest's scheduler does as well.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

/// The benchmark's limit on readers.
const MOST_READERS: u32 = 512;

pub const BENCH_GRACE: Experiment = Experiment {
    name: "bench-grace",
    summary: "`reprieve bench grace`: programs' grace periods, and what call_rcu costs its caller",
    competition: "three hog VMs",
    source: "ours",
    vms,
    ..Experiment::NONE
};

fn vms(size: &Size, _: &Options) -> Vms {
    let all = size.all();
    let vcpus = all.len() as u32;
    let readers = format!("{},{}", vcpus - 1, (8 * vcpus).min(MOST_READERS));
    let arguments = ["bench", "grace", "--json", "--rounds", "1", "--readers", &readers]
        .into_iter()
        // Without the locks: their writers wait for readers, not for grace periods.
        .chain(["--against", "urcu,crossbeam,seize,haphazard", "--neighbour", "none"])
        .map(String::from);
    let load = Workload::Bench { arguments: arguments.collect() };
    let subject = vm("bench", vcpus, &all, size.work_memory(vcpus), load);
    Ok((subject, hogs(vcpus, &all, size)))
}
