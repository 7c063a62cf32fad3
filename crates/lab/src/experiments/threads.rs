// SPDX-License-Identifier: MIT OR Apache-2.0
//! `threads`: the problem without a VM. Threads of one program share the CPUs of the VMs' host:
//! some announce their critical sections (crate `hint`), some are plain readers of the runtime, for
//! which its grace periods wait, and some only compute.
//!
//! The experiment measures preemptions inside sections (an eBPF program at context switches counts
//! them, whoever schedules), grace periods of the runtime, sections per second, and whether a
//! thread that announces sections gets more CPU time than one that does not.

use super::guests::vm;
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use reprieve_init::protocol::Workload;
use std::time::Duration;

/// Threads per CPU: far more than [ECS]'s two VMs, so that who loses its CPU lacks it for long.
const PER_CPU: u32 = 16;

/// Memory of the program, MiB.
const MEMORY: u64 = 128;

pub struct Threads;

impl Experiment for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn summary(&self) -> &'static str {
        "16 threads per CPU of the host, no VM: hinted sections, the runtime's readers, others"
    }

    fn competition(&self) -> &'static str {
        "each other; alone: one thread per CPU"
    }

    fn source(&self) -> &'static str {
        "[ECS] for threads"
    }

    fn vms(&self, _: &Size, _: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        Ok((vm("threads", 0, &[], MEMORY, Workload::Threads { per_cpu: PER_CPU }), vec![]))
    }

    /// Each of 16 threads per CPU has 200 slices then.
    fn least_phase(&self) -> Duration {
        Duration::from_secs(10)
    }
}
