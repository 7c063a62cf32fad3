// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large the VMs of an experiment are on a given machine.
//!
//! `paper` is [RP]'s test bed exactly (64 CPUs in two halves). `machine` keeps its proportions on any number of CPUs from 8: two halves, each
//! shared by one VM with a vCPU per CPU and a bursty VM with a vCPU per four CPUs. On fewer CPUs the halves would hold VMs of one vCPU, whose
//! RCU never waits for another vCPU; there the halves are merged, so every VM spans all CPUs, and two VMs of a vCPU per CPU
//! plus the bursty ones share them: more overcommitted than the paper, which the report shows.

use crate::error::{Error, Result};
use crate::plan::{Plan, Scale};

/// The machine whose CPUs and memory the VMs get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u32,
    /// Memory that VMs may take, MiB.
    pub memory_mib: u64,
}

/// CPUs that the paper's experiments use.
const PAPER_CPUS: u32 = 64;

/// Fewest CPUs that are split into halves.
const SPLIT_CPUS: u32 = 8;

/// What QEMU itself takes per VM, MiB.
const VMM_MIB: u64 = 96;

#[derive(Clone, Debug)]
pub struct Size {
    pub scale: Scale,
    machine: Machine,
    /// CPUs in use.
    cpus: u32,
}

impl Size {
    pub fn new(scale: Scale, machine: Machine) -> Result<Size> {
        if machine.cpus < 2 {
            return Err(Error::Usage(format!(
                "{} CPU: an experiment needs 2 or more, else there is nobody to wait for",
                machine.cpus
            )));
        }
        let cpus = match scale {
            Scale::Paper if machine.cpus < PAPER_CPUS => {
                return Err(Error::Usage(format!(
                    "--scale paper needs {PAPER_CPUS} CPUs and the VMs would get {}: use --scale machine, which keeps the proportions",
                    machine.cpus
                )));
            }
            Scale::Paper => PAPER_CPUS,
            Scale::Quick | Scale::Machine => machine.cpus,
        };
        Ok(Size { scale, machine, cpus })
    }

    /// All CPUs in use.
    pub fn all(&self) -> Vec<u32> {
        (0..self.cpus).collect()
    }

    /// The two halves of the CPUs; both are all CPUs on a small machine.
    pub fn halves(&self) -> [Vec<u32>; 2] {
        if self.cpus < SPLIT_CPUS {
            return [self.all(), self.all()];
        }
        let half = self.cpus / 2;
        [(0..half).collect(), (half..2 * half).collect()]
    }

    /// The lower half of the CPUs, on machines of any size.
    pub fn lower(&self) -> Vec<u32> {
        (0..self.cpus / 2).collect()
    }

    /// vCPUs of a bursty VM: one per four CPUs of its half.
    pub fn bursty_vcpus(&self) -> u32 {
        (self.halves()[0].len() as u32 / 4).max(1)
    }

    /// A quarter of the CPUs, rounded up.
    pub fn quarter(&self) -> u32 {
        self.cpus.div_ceil(4)
    }

    /// Memory of a VM that works on memory: 256 MiB per vCPU (the paper's 8 GB for 32).
    pub fn work_memory(&self, vcpus: u32) -> u64 {
        (256 * u64::from(vcpus)).max(512)
    }

    /// Memory of a VM that only computes.
    pub fn small_memory(&self, vcpus: u32) -> u64 {
        128 + 16 * u64::from(vcpus)
    }

    /// Memory of a bursty VM: the paper's 4 GB for 8 vCPUs at its scale, else what it needs.
    pub fn bursty_memory(&self, vcpus: u32) -> u64 {
        match self.scale {
            Scale::Paper => 4096,
            Scale::Quick | Scale::Machine => self.small_memory(vcpus),
        }
    }

    /// Memory of all VMs of `plan` with their VMMs, MiB.
    pub fn memory_of(plan: &Plan) -> u64 {
        let subjects = plan.variants.len() as u64 * (plan.subject.memory_mib + VMM_MIB);
        let others = plan.competitors.iter().map(|vm| vm.memory_mib + VMM_MIB);
        subjects + others.sum::<u64>()
    }

    pub fn check_memory(&self, plan: &Plan) -> Result<()> {
        let (need, have) = (Size::memory_of(plan), self.machine.memory_mib);
        if need <= have {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the VMs of {} need {need} MiB and there are {have} MiB for them: free some, or ask for fewer combinations or a smaller scale",
            plan.experiment
        )))
    }
}
