// SPDX-License-Identifier: MIT OR Apache-2.0
//! `asym`: one vCPU produces garbage at full speed, the other shares its CPU with hogs.
//!
//! Under symmetric overcommit the producer of garbage is preempted as often as the reader for which
//! its grace periods wait, so memory does not grow. Here the producer has a CPU to itself: while a
//! grace period waits for the other vCPU, garbage piles up.

use super::guests::hogs;
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;

pub struct Asym;

impl Experiment for Asym {
    fn name(&self) -> &'static str {
        "asym"
    }

    fn summary(&self) -> &'static str {
        "vCPU 1 frees 64 KiB at a time through call_rcu; vCPU 0 does short system calls"
    }

    fn competition(&self) -> &'static str {
        "three hog VMs, all on the CPU of vCPU 0"
    }

    fn source(&self) -> &'static str {
        "ours"
    }

    fn vms(&self, size: &Size, _: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let subject = VmPlan {
            name: "asym".into(),
            vcpus: 2,
            memory_mib: size.garbage_memory(2),
            pin: vec![vec![0], vec![1]],
            pin_other: vec![1],
            workload: Workload::SemChurn { producer_cpu: 1, reader_cpus: vec![0], semaphores: 512 },
        };
        let mut others = hogs(2, &[0], size);
        for hog in &mut others {
            hog.pin_other = vec![0];
        }
        Ok((subject, others))
    }
}
