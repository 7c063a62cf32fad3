// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plan: everything one run of an experiment will do, resolved to numbers.
//!
//! The command line becomes a plan once; whatever executes it (this machine, a lab host, later a simulator) and whatever
//! reports on it reads only the plan. A plan is plain data and goes into the results, so that a run can be repeated from
//! its report.

use reprieve_init::protocol::{Measure, Workload};
use serde::{Deserialize, Serialize};

/// Bumped when a stored plan or record changes meaning.
pub const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub schema: u32,
    /// Name of the experiment, as `lab list` shows it.
    pub experiment: String,
    pub scale: Scale,
    /// Runs of each (variant, scenario).
    pub repeat: u32,
    pub warmup_ms: u64,
    pub phase_ms: u64,
    pub measure: Measure,
    /// The combinations asked for; all run interleaved in one boot of the host.
    pub variants: Vec<Variant>,
    /// The guest under test; one VM per variant is made from it.
    pub subject: Vm,
    /// The other VMs; paused in the baseline, running under overcommit.
    pub competitors: Vec<Vm>,
    /// Seed of everything random.
    pub seed: u64,
    /// The command line that made this plan.
    pub command: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    Quick,
    Machine,
    Paper,
}

/// One combination of the dimensions that a run compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Short and unique in the plan, made of what differs between variants (`default` when there is but one).
    pub label: String,
    /// The guest kernel as asked for: `deb:6.12` or a path.
    pub guest_kernel: String,
    /// `preempt=` of the guest, or its kernel's default.
    pub preempt: Option<String>,
    /// More guest kernel parameters.
    pub guest_args: String,
    /// The host's scheduler.
    pub policy: String,
}

impl Variant {
    /// Everything this variant adds to the guest's kernel command line.
    pub fn kernel_args(&self) -> String {
        let preempt = self.preempt.iter().map(|model| format!("preempt={model}"));
        let args = (!self.guest_args.is_empty()).then(|| self.guest_args.clone());
        preempt.chain(args).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    pub name: String,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// Host CPUs each vCPU may use; one entry per vCPU. Empty: all, all.
    pub pin: Vec<Vec<u32>>,
    /// Host CPUs of the VMM's other threads. Empty: all.
    pub pin_other: Vec<u32>,
    pub workload: Workload,
}

/// The two conditions under which a guest is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    Baseline,
    Overcommit,
}
