// SPDX-License-Identifier: MIT OR Apache-2.0
//! `postmark`: [RP] experiment 1, figure 2.

use super::guests::{bursty_pair, membench, postmark};
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;

pub struct Postmark;

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

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        let [lower, upper] = size.halves();
        let vcpus = lower.len() as u32;
        let subject = postmark(vcpus, &lower, size, options);
        let mut others = vec![membench(vcpus, &upper, size, options)];
        others.extend(bursty_pair(size, options));
        Ok((subject, others))
    }
}
