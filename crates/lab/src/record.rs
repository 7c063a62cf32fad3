// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records of a run: `raw.jsonl` has one [`Record`] per line, in the order of time.
//!
//! The first record is [`Record::Run`], the last [`Record::End`]; a file without `End` is that of a
//! run that died. All samples lie between the [`Record::PhaseStart`] and
//! [`Record::PhaseEnd`] of their phase.

use crate::costs::Costs;
use crate::dilation::Dilation;
use crate::plan::{Plan, Scenario};
use crate::watcher::WatchOutcome;
use reprieve_init::protocol::{GuestInfo, PhaseResult, Sample};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Share of the machine's CPU time from which on other work disturbs a phase: its figures decide
/// nothing.
pub const LOUD: f64 = 0.10;

/// Part of the notice that a phase is tried again, after a VM or the lab host died in it.
pub const BOOTED_AGAIN: &str = "booted again";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    Run {
        plan: Box<Plan>,
        /// RFC 3339, UTC.
        started: String,
        host: HostInfo,
    },
    /// A VM has booted.
    Guest {
        vm: String,
        /// Index into `plan.variants`, for guests under test: the first variant with this guest.
        variant: Option<usize>,
        info: GuestInfo,
        boot_ms: u64,
    },
    /// The costs of switches, exits and interrupts on the VMs' host.
    Costs {
        costs: Costs,
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
    /// Instead of the end of a phase: the guest under test ran out of memory.
    PhaseDied {
        phase: u32,
        death: Death,
    },
    /// A remark for the report, e.g. about a boot that was tried again.
    Notice {
        text: String,
    },
    /// `reason`: why the run failed, if it did.
    End {
        complete: bool,
        reason: Option<String>,
    },
}

/// How a guest under test died of its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Death {
    /// Since the beginning of the phase, by the clock of the VMs' host.
    pub after_ns: u64,
    /// The line of the console that says why.
    pub line: String,
    /// The console's log.
    pub log: Option<PathBuf>,
}

/// The machine whose CPUs the VMs shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// `kvm`, `tcg` or `nested`.
    pub mode: String,
    /// Why this mode was chosen.
    pub why: String,
    pub kernel: String,
    pub cpus: u32,
    pub memory_kb: u64,
    pub cpu_model: String,
    pub qemu: String,
    /// How much slower its clocks run than those of the machine that runs it.
    #[serde(default)]
    pub dilation: Dilation,
    /// The slice of its stock scheduler, where its kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_slice_ns: Option<u64>,
    /// For nested runs: the machine on which the lab host ran.
    pub outer: Option<Box<HostInfo>>,
}

/// The host's counters for a phase. Times in ns, summed over the vCPUs of the VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostPhase {
    /// Preemptions of the vCPUs under test: their involuntary context switches.
    pub vcpu_preemptions: u64,
    /// Time during which these vCPUs were runnable but not running
    /// (`/proc/PID/task/TID/schedstat`).
    pub vcpu_wait_ns: u64,
    /// Host CPU time by VM name, all threads of the VMM.
    pub cpu_ns: std::collections::BTreeMap<String, u64>,
    pub elapsed_ns: u64,
    /// Share (0 to 1) of this machine's CPU time during the phase that was used by other work than
    /// the run, or stolen. `None` where it is not known.
    #[serde(default)]
    pub other_busy: Option<f64>,
    /// The policy's report about itself by the end of the phase, since it was put into
    /// force, if it makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<serde_json::Value>,
    /// The watcher's view from outside the guest. `None` for a run without a watcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<WatchOutcome>,
}
