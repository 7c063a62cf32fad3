// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plan: everything that one run of an experiment will do, as plain data.
//!
//! The command line becomes a plan once. The code that executes it (on this machine, in a lab host)
//! and the code that reports on it read only the plan. It is part of the results, so that a run can
//! be repeated from its report.

use crate::policy::Policy;
use reprieve_init::protocol::{Measure, Workload};
use serde::{Deserialize, Serialize};

/// Bumped when a stored plan or record changes meaning.
pub const SCHEMA: u32 = 3;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub schema: u32,
    /// Name of the experiment, as `lab list` shows it.
    pub experiment: String,
    /// Runs of each (variant, scenario).
    pub repeat: u32,
    /// The scenarios measured of each variant, in this order.
    #[serde(default = "Scenario::both")]
    pub scenarios: Vec<Scenario>,
    pub warmup_ms: u64,
    pub phase_ms: u64,
    pub measure: Measure,
    /// The combinations of settings to compare; measured in turn, on one boot of the host.
    pub variants: Vec<Variant>,
    /// The guest under test; one VM is made from it for each of [`Plan::guests`].
    pub subject: VmPlan,
    /// The other VMs: paused in the baseline, running under overcommit.
    pub competitors: Vec<VmPlan>,
    /// Seed of everything random.
    pub seed: u64,
    /// The command line that made this plan.
    pub command: String,
}

/// A combination of the settings that a run compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Unique in the plan and short: the settings in which this variant differs from the others
    /// (`default` if there is only one).
    pub label: String,
    /// The guest kernel as the user named it: `deb:6.12` or a path.
    pub guest_kernel: String,
    /// `preempt=` of the guest, or its kernel's default.
    pub preempt: Option<String>,
    /// More guest kernel parameters.
    pub guest_args: String,
    /// The host's scheduler.
    pub policy: Policy,
}

impl Variant {
    /// The parameters that this variant adds to the guest's kernel command line.
    pub fn kernel_args(&self) -> String {
        let preempt = self.preempt.iter().map(|model| format!("preempt={model}"));
        let args = (!self.guest_args.is_empty()).then(|| self.guest_args.clone());
        preempt.chain(args).collect::<Vec<_>>().join(" ")
    }

    /// Whether both are about the same guest, perhaps under different policies.
    pub fn same_guest(&self, other: &Variant) -> bool {
        let guest = |v: &Variant| (v.guest_kernel.clone(), v.preempt.clone(), v.guest_args.clone());
        guest(self) == guest(other)
    }
}

impl Plan {
    pub fn vms(&self) -> impl Iterator<Item = &VmPlan> {
        [&self.subject].into_iter().chain(&self.competitors)
    }

    /// Whether a VM has a limit of CPU time.
    pub fn limits(&self) -> bool {
        self.vms().any(|vm| vm.cgroup.max_percent.is_some())
    }

    /// Whether the VMs need cgroups of their own, wherever they run.
    pub fn needs_cgroups(&self) -> bool {
        self.vms().any(|vm| vm.cgroup != CpuControl::default())
    }

    /// For each variant, the first one with the same guest. One VM serves all variants that differ
    /// in their policy only: so policies are compared on the same boot.
    pub fn guests(&self) -> Vec<usize> {
        let first = |v: &Variant| self.variants.iter().position(|other| other.same_guest(v));
        self.variants.iter().enumerate().map(|(i, v)| first(v).unwrap_or(i)).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmPlan {
    pub name: String,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// The host CPUs of each vCPU, one entry per vCPU. Empty: every vCPU may use all CPUs.
    pub pin: Vec<Vec<u32>>,
    /// The host CPUs of the VMM's other threads. Empty: all.
    pub pin_other: Vec<u32>,
    #[serde(default)]
    pub cgroup: CpuControl,
    pub workload: Workload,
}

/// The CPU controller's files in the cgroup of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuControl {
    /// `cpu.weight`.
    pub weight: u32,
    /// `cpu.max`, in percent of a CPU. `None`: no limit.
    pub max_percent: Option<u32>,
}

impl CpuControl {
    /// The weight of a new cgroup.
    pub const WEIGHT: u32 = 100;

    /// The weights that the kernel takes.
    pub const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=10_000;
}

impl Default for CpuControl {
    fn default() -> CpuControl {
        CpuControl { weight: CpuControl::WEIGHT, max_percent: None }
    }
}

/// The two conditions under which a guest is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    Baseline,
    Overcommit,
}

impl Scenario {
    /// Alone, then overcommitted.
    pub fn both() -> Vec<Scenario> {
        vec![Scenario::Baseline, Scenario::Overcommit]
    }
}
