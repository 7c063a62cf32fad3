// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-threads`: critical sections of programs inside a guest. Threads of a program announce
//! them (crate `hint`), the host reads the announcements through the region that it offers, and
//! tells the program which vCPUs are preempted.
//!
//! The experiment measures preemptions of vCPUs inside such sections, seen from outside at context
//! switches, whoever schedules, and what the program was answered.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size, Vms};
use reprieve_init::protocol::Workload;

/// Threads per vCPU: far more than [ECS]'s two VMs, so that who loses its CPU lacks it for long.
const PER_VCPU: u32 = 16;

/// A quarter of the time is in sections.
const SECTION_US: u32 = 50;
const PAUSE_US: u32 = 150;

pub const GUEST_THREADS: Experiment = Experiment {
    name: "guest-threads",
    summary: "16 threads per vCPU that announce their sections to the host",
    competition: "3 VMs that never stop computing",
    source: "[ECS] from user space of a guest",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, _: &Options) -> Vms {
    let all = size.all();
    let vcpus = all.len() as u32;
    let (section_us, pause_us) = (SECTION_US, PAUSE_US);
    let load = Workload::Hinted { threads: PER_VCPU * vcpus, section_us, pause_us };
    let subject = vm("program", vcpus, &all, size.small_memory(vcpus) + 64, load);
    Ok((subject, hogs(vcpus, &all, size)))
}
