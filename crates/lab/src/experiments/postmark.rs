// SPDX-License-Identifier: MIT OR Apache-2.0
//! `postmark`: [RP] experiment 1, figure 2.

use super::{Experiment, Options, Size, bursty, membench, vm};
use crate::error::Result;
use crate::plan::Vm;
use reprieve_init::protocol::Workload;

pub struct Postmark;

/// Files per instance: the paper's 128 K files over 32 instances.
const FILES: u32 = 4096;

impl Experiment for Postmark {
    fn name(&self) -> &'static str {
        "postmark"
    }

    fn summary(&self) -> &'static str {
        "the Postmark program, one instance per vCPU, on tmpfs"
    }

    fn competition(&self) -> &'static str {
        "a membench VM and two bursty VMs"
    }

    fn source(&self) -> &'static str {
        "[RP] experiment 1"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(Vm, Vec<Vm>)> {
        let [lower, upper] = size.halves();
        let vcpus = lower.len() as u32;
        let subject = guest("postmark", vcpus, &lower, size, options);
        let mut others = vec![membench::guest("membench", vcpus, &upper, size, options)];
        others.extend(bursty_pair(size, options));
        Ok((subject, others))
    }
}

pub(super) fn guest(name: &str, vcpus: u32, cpus: &[u32], size: &Size, options: &Options) -> Vm {
    let workload = Workload::Postmark { instances: vcpus, files: FILES, seed: options.seed };
    vm(name, vcpus, cpus, size.work_memory(vcpus), workload)
}

/// [RP]'s VM3 and VM4: one in each half.
pub(super) fn bursty_pair(size: &Size, options: &Options) -> Vec<Vm> {
    let vcpus = size.bursty_vcpus();
    let mut pair = Vec::new();
    for (i, half) in size.halves().iter().enumerate() {
        let load = bursty(vcpus, options.seed.wrapping_add(1 + i as u64));
        let name = format!("bursty{}", i + 1);
        let memory = size.paper_or(4096, size.small_memory(vcpus));
        pair.push(vm(&name, vcpus, half, memory, load));
    }
    pair
}
