// SPDX-License-Identifier: MIT OR Apache-2.0
//! `membench`: [RP] experiment 1, figure 3.

use super::{Experiment, Options, Size, postmark, vm};
use crate::error::Result;
use crate::plan::Vm;
use reprieve_init::protocol::Workload;
use std::time::Duration;

pub struct Membench;

impl Experiment for Membench {
    fn name(&self) -> &'static str {
        "membench"
    }

    fn summary(&self) -> &'static str {
        "kernel threads that allocate 1 KiB and free it through call_rcu, 2500 times per second per CPU"
    }

    fn competition(&self) -> &'static str {
        "a Postmark VM and two bursty VMs"
    }

    fn source(&self) -> &'static str {
        "[RP] experiment 1"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(Vm, Vec<Vm>)> {
        let [lower, upper] = size.halves();
        let vcpus = upper.len() as u32;
        let subject = guest("membench", vcpus, &upper, size, options);
        let mut others = vec![postmark::guest("postmark", vcpus, &lower, size, options)];
        others.extend(postmark::bursty_pair(size, options));
        Ok((subject, others))
    }

    fn phase(&self) -> Duration {
        Duration::from_secs(150)
    }
}

pub(super) fn guest(name: &str, vcpus: u32, cpus: &[u32], size: &Size, options: &Options) -> Vm {
    let workload = Workload::Membench {
        cpus: Vec::new(),
        rate: options.rate,
        object_bytes: options.object_bytes,
        yield_every: 10,
    };
    vm(name, vcpus, cpus, size.work_memory(vcpus), workload)
}
