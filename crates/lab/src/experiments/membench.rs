// SPDX-License-Identifier: MIT OR Apache-2.0
//! `membench`: [RP] experiment 1, figure 3.

use super::guests::{bursty_pair, membench, postmark};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

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

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let [lower, upper] = size.halves();
        let vcpus = upper.len() as u32;
        let subject = membench(vcpus, &upper, size, options);
        let mut others = vec![postmark(vcpus, &lower, size, options)];
        others.extend(bursty_pair(size, options));
        Ok((subject, others))
    }
}
