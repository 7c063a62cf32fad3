// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guest-threads`: critical sections of programs inside a guest. Threads of a program announce
//! them (crate `hint`), the host reads the announcements through the region that it offers, and
//! tells the program which vCPUs are preempted.
//!
//! The experiment measures preemptions of vCPUs inside such sections, seen from outside at context
//! switches, whoever schedules; whether the VM gets more CPU time for announcing; and what the
//! program was answered.

use super::guests::{hogs, vm};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;

/// Threads per vCPU: far more than [ECS]'s two VMs, so that who loses its CPU lacks it for long.
const PER_VCPU: u32 = 16;

/// A quarter of the time is in sections.
const SECTION_US: u32 = 50;
const PAUSE_US: u32 = 150;

pub struct GuestThreads;

impl Experiment for GuestThreads {
    fn name(&self) -> &'static str {
        "guest-threads"
    }

    fn summary(&self) -> &'static str {
        "16 threads per vCPU that announce their sections to the host"
    }

    fn competition(&self) -> &'static str {
        "3 VMs that never stop computing"
    }

    fn source(&self) -> &'static str {
        "[ECS] from user space of a guest"
    }

    fn vms(&self, size: &Size, _: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let all = size.all();
        let vcpus = all.len() as u32;
        let (section_us, pause_us) = (SECTION_US, PAUSE_US);
        let load = Workload::Hinted { threads: PER_VCPU * vcpus, section_us, pause_us };
        let subject = vm("program", vcpus, &all, size.small_memory(vcpus) + 64, load);
        Ok((subject, hogs(vcpus, &all, size)))
    }

    fn fair(&self) -> bool {
        true
    }
}
