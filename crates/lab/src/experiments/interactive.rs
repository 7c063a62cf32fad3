// SPDX-License-Identifier: MIT OR Apache-2.0
//! `interactive`: what a scheduler that is considerate of VMs costs a thread of the host that
//! sleeps most of the time. The VMs are those of `churn`.

use super::Experiment;
use super::churn::CHURN;
use std::time::Duration;

pub const INTERACTIVE: Experiment = Experiment {
    name: "interactive",
    summary: "`churn`, beside a thread of the host that sleeps 1-10 ms and runs 50 us; how late it wakes",
    competition: CHURN.competition,
    source: "ours",
    vms: CHURN.vms,
    // Some 1,800 sleeps, 18 of them beyond the 99th percentile.
    least_phase: Duration::from_secs(10),
    interactive: true,
    ..Experiment::NONE
};
