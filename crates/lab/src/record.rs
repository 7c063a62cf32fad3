// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run writes down as it happens: `raw.jsonl`, one [`Record`] per line.
//!
//! The first record is [`Record::Run`], the last [`Record::End`]; a file without `End` is that of a run that died. All
//! samples lie between the [`Record::PhaseStart`] and [`Record::PhaseEnd`] of their phase.

use crate::outside::Outside;
use crate::plan::{Plan, Scenario};
use reprieve_init::protocol::{GuestInfo, PhaseResult, Sample};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    Run {
        plan: Box<Plan>,
        /// RFC 3339, UTC.
        started: String,
        host: HostInfo,
    },
    /// A VM is up.
    Guest {
        vm: String,
        /// Index into `plan.variants`, for guests under test.
        variant: Option<usize>,
        info: GuestInfo,
        boot_ms: u64,
    },
    PhaseStart {
        phase: u32,
        variant: usize,
        /// 0-based.
        repeat: u32,
        scenario: Scenario,
    },
    Sample {
        phase: u32,
        #[serde(flatten)]
        sample: Sample,
    },
    PhaseEnd {
        phase: u32,
        result: PhaseResult,
        host: HostPhase,
    },
    /// Retried boots, lost events, and the like: belongs in the report.
    Notice {
        text: String,
    },
    /// A failed run keeps its reason.
    End {
        complete: bool,
        reason: Option<String>,
    },
}

/// The machine whose CPUs the VMs shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// `kvm`, `tcg` or `nested`.
    pub mode: String,
    /// Why this mode.
    pub why: String,
    pub kernel: String,
    pub cpus: u32,
    pub memory_kb: u64,
    pub cpu_model: String,
    pub qemu: String,
    /// For nested runs: the machine that carried the lab host.
    pub outer: Option<Box<HostInfo>>,
}

/// What the host saw of a phase. Times in ns; sums over the vCPUs of the VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostPhase {
    /// Involuntary context switches of the vCPUs under test: times one was preempted.
    pub vcpu_preemptions: u64,
    /// Time those vCPUs were runnable and not running (`/proc/PID/task/TID/schedstat`).
    pub vcpu_wait_ns: u64,
    /// Host CPU time by VM name, all threads of the VMM.
    pub cpu_ns: std::collections::BTreeMap<String, u64>,
    pub elapsed_ns: u64,
    /// Share (0 to 1) of the carrying machine's CPU time in the phase that something else than the run used or stole. `None` where it is not
    /// known.
    #[serde(default)]
    pub other_busy: Option<f64>,
    /// What somebody who reads the guest's memory saw. `None` where nobody was asked to look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<Outside>,
}
