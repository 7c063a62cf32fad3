// SPDX-License-Identifier: MIT OR Apache-2.0
//! `asym`: a vCPU that produces garbage at full speed beside one that shares its CPU with hogs.
//!
//! Under symmetric overcommit the producer of garbage starves along with the reader that holds the garbage up, so memory does not grow. Here
//! the producer has a CPU to itself: every grace period that waits for the other vCPU piles up what it frees.

use super::{Experiment, Options, Size, hogs};
use crate::error::Result;
use crate::plan::Vm;
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

    fn vms(&self, size: &Size, _: &Options) -> Result<(Vm, Vec<Vm>)> {
        let subject = Vm {
            name: "asym".into(),
            vcpus: 2,
            memory_mib: size.work_memory(2),
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
