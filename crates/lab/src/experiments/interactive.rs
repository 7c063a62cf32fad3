// SPDX-License-Identifier: MIT OR Apache-2.0
//! `interactive`: what a scheduler that is considerate of VMs costs a thread of the host that
//! sleeps most of the time. The VMs are those of `churn`.

use super::churn::Churn;
use super::{Experiment, Options, Size};
use crate::error::Result;
use crate::plan::VmPlan;
use std::time::Duration;

pub struct Interactive;

impl Experiment for Interactive {
    fn name(&self) -> &'static str {
        "interactive"
    }

    fn summary(&self) -> &'static str {
        "`churn`, beside a thread of the host that sleeps 1-10 ms and runs 50 us; how late it wakes"
    }

    fn competition(&self) -> &'static str {
        Churn.competition()
    }

    fn source(&self) -> &'static str {
        "ours"
    }

    fn vms(&self, size: &Size, options: &Options) -> Result<(VmPlan, Vec<VmPlan>)> {
        Churn.vms(size, options)
    }

    /// Some 1,800 sleeps, 18 of them beyond the 99th percentile.
    fn least_phase(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn interactive(&self) -> bool {
        true
    }
}
