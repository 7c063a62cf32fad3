// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments, one file each, and how a request for one becomes a plan.
//!
//! An experiment says which VMs there are for a given [`Size`]; everything else (dimensions, phases, measuring) is common. To add one, write
//! its file and name it in [`ALL`].

mod asym;
mod bench_grace;
mod churn;
mod clone;
mod dbench;
mod membench;
mod postmark;
mod size;

pub use size::{Machine, Size};

use crate::error::{Error, Result};
use crate::plan::{Plan, SCHEMA, Scale, Variant, Vm};
use reprieve_init::protocol::{Measure, Namespace, Workload};
use std::time::Duration;

/// One experiment. Sizes and competitors follow [`Size`].
pub trait Experiment: Sync {
    fn name(&self) -> &'static str;
    /// What runs in the guest under test, one line.
    fn summary(&self) -> &'static str;
    /// What it competes with, one line.
    fn competition(&self) -> &'static str;
    /// The paper and section it comes from; `ours` for none.
    fn source(&self) -> &'static str;
    /// The guest under test and its competitors.
    fn vms(&self, size: &Size, options: &Options) -> Result<(Vm, Vec<Vm>)>;
    /// Length of a phase at the scales `machine` and `paper`: what the paper's figures show.
    fn phase(&self) -> Duration {
        Duration::from_secs(100)
    }
    /// `call_rcu` probes per second and CPU.
    fn callback_probe_hz(&self) -> u32 {
        0
    }
}

/// All experiments, in the order in which `lab list` shows them.
pub static ALL: &[&dyn Experiment] = &[
    &postmark::Postmark,
    &membench::Membench,
    &clone::Clone,
    &asym::Asym,
    &dbench::Dbench,
    &churn::Churn,
    &bench_grace::BenchGrace,
];

/// The experiment called `name`.
pub fn find(name: &str) -> Result<&'static dyn Experiment> {
    ALL.iter().copied().find(|e| e.name() == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|e| e.name()).collect();
        Error::Usage(format!("there is no experiment {name}; there are: {}", names.join(", ")))
    })
}

/// Knobs of single experiments; the others ignore them.
#[derive(Clone, Debug)]
pub struct Options {
    /// `membench`: allocation and `call_rcu` pairs per second per CPU; 0 for as many as it can.
    pub rate: u32,
    /// `membench`: bytes per allocation.
    pub object_bytes: u32,
    /// `clone`: the namespaces of each child.
    pub namespaces: Vec<Namespace>,
    pub seed: u64,
}

impl Default for Options {
    /// The papers' values.
    fn default() -> Options {
        use Namespace::*;
        let namespaces = vec![Cgroup, Ipc, Mnt, Net, Pid, Time, User, Uts];
        Options { rate: 2500, object_bytes: 1024, namespaces, seed: 1 }
    }
}

/// What the user asked for. Lists are dimensions: every combination becomes a variant.
#[derive(Clone, Debug)]
pub struct Request {
    pub experiment: String,
    pub scale: Scale,
    pub repeat: u32,
    pub guest_kernels: Vec<String>,
    pub preempt: Vec<Option<String>>,
    pub guest_args: Vec<String>,
    pub policies: Vec<String>,
    /// Instead of what the scale says.
    pub phase: Option<Duration>,
    pub warmup: Option<Duration>,
    pub options: Options,
    pub command: String,
}

/// Most repeats, longest phase, largest object (the kernel module's limit), highest rate (likewise), longest kernel parameters.
const MAX_REPEAT: u32 = 1000;
const MAX_PHASE: Duration = Duration::from_secs(3600);
const MAX_OBJECT: u32 = 1 << 20;
const MAX_RATE: u32 = 10_000_000;
const MAX_ARGS: usize = 1500;

/// Host scheduling policies that `--policy` takes.
pub const POLICIES: &[&str] = &["eevdf"];

impl Request {
    /// Resolves the request for the machine that will run the VMs.
    ///
    /// # Errors
    /// Unknown names, nonsensical values, and a machine too small for the scale, each with what to do.
    pub fn plan(&self, machine: &Machine) -> Result<Plan> {
        let experiment = find(&self.experiment)?;
        let usage = |text: String| Err(Error::Usage(text));
        if !(1..=MAX_REPEAT).contains(&self.repeat) {
            return usage(format!("--repeat {}: give 1 to {MAX_REPEAT}", self.repeat));
        }
        let Options { rate, object_bytes, .. } = self.options;
        if !(16..=MAX_OBJECT).contains(&object_bytes) {
            return usage(format!("--object-bytes {object_bytes}: give 16 to {MAX_OBJECT}"));
        }
        if rate > MAX_RATE {
            return usage(format!("--rate {rate}: give 0 (as many as it can) to {MAX_RATE}"));
        }
        if let Some(kernel) = self.guest_kernels.iter().find(|k| k.is_empty()) {
            return usage(format!(
                "--guest-kernel {kernel:?} is empty: give deb:VERSION or a path"
            ));
        }
        if let Some(args) = self.guest_args.iter().find(|a| a.len() > MAX_ARGS) {
            return usage(format!(
                "--guest-args of {} bytes: a kernel takes {MAX_ARGS} at most",
                args.len()
            ));
        }
        if let Some(policy) = self.policies.iter().find(|p| !POLICIES.contains(&p.as_str())) {
            return usage(format!(
                "there is no policy {policy}; there are: {}",
                POLICIES.join(", ")
            ));
        }
        let size = Size::new(self.scale, *machine)?;
        let (subject, competitors) = experiment.vms(&size, &self.options)?;
        let (warmup, phase) = match self.scale {
            Scale::Quick => (Duration::from_secs(6), Duration::from_secs(15)),
            Scale::Machine | Scale::Paper => (Duration::from_secs(10), experiment.phase()),
        };
        let (warmup, phase) = (self.warmup.unwrap_or(warmup), self.phase.unwrap_or(phase));
        if phase < Duration::from_secs(1) || phase.max(warmup) > MAX_PHASE {
            return usage(format!(
                "--phase {phase:?}, --warmup {warmup:?}: a phase takes 1 s to {} s, a warm-up no more",
                MAX_PHASE.as_secs()
            ));
        }
        let plan = Plan {
            schema: SCHEMA,
            experiment: self.experiment.clone(),
            scale: self.scale,
            repeat: self.repeat,
            warmup_ms: warmup.as_millis() as u64,
            phase_ms: phase.as_millis() as u64,
            measure: Measure {
                memory_ms: 20,
                slow_ms: 1000,
                // `churn` makes 5000 events of 24 bytes per second and CPU; twice that.
                trace_kb: (phase.as_secs() as u32).saturating_mul(256).clamp(2048, 24 << 10),
                callback_probe_hz: experiment.callback_probe_hz(),
            },
            variants: self.variants()?,
            subject,
            competitors,
            seed: self.options.seed,
            command: self.command.clone(),
        };
        size.check_memory(&plan)?;
        Ok(plan)
    }

    fn variants(&self) -> Result<Vec<Variant>> {
        let mut variants = Vec::new();
        for guest_kernel in &self.guest_kernels {
            for preempt in &self.preempt {
                for guest_args in &self.guest_args {
                    for policy in &self.policies {
                        variants.push(Variant {
                            label: String::new(),
                            guest_kernel: guest_kernel.clone(),
                            preempt: preempt.clone(),
                            guest_args: guest_args
                                .split_ascii_whitespace()
                                .collect::<Vec<_>>()
                                .join(" "),
                            policy: policy.clone(),
                        });
                    }
                }
            }
        }
        let labels: Vec<String> = variants.iter().map(|v| self.label(v)).collect();
        for (i, label) in labels.iter().enumerate() {
            if labels[..i].contains(label) {
                return Err(Error::Usage(format!("{label} is asked for twice: leave one out")));
            }
        }
        for (variant, label) in variants.iter_mut().zip(labels) {
            variant.label = label;
        }
        Ok(variants)
    }

    /// What tells `variant` from the others.
    fn label(&self, variant: &Variant) -> String {
        let mut parts = Vec::new();
        if self.guest_kernels.len() > 1 {
            parts.push(variant.guest_kernel.trim_start_matches("deb:").to_string());
        }
        if self.preempt.len() > 1 {
            parts.push(match &variant.preempt {
                Some(model) => format!("preempt={model}"),
                None => "preempt default".into(),
            });
        }
        if self.guest_args.len() > 1 {
            parts.push(match variant.guest_args.as_str() {
                "" => "defaults".into(),
                args => args.into(),
            });
        }
        if self.policies.len() > 1 {
            parts.push(variant.policy.clone());
        }
        if parts.is_empty() { "default".into() } else { parts.join(", ") }
    }
}

/// [RP]'s bursty competitor: 0.1 to 10 M arithmetic operations, then 1 to 200 ms asleep.
fn bursty(processes: u32, seed: u64) -> Workload {
    Workload::Bursty {
        processes,
        min_ops: 100_000,
        max_ops: 10_000_000,
        min_sleep_ms: 1,
        max_sleep_ms: 200,
        seed,
    }
}

/// A VM whose vCPUs may each run on all of `cpus` (anywhere, when empty).
fn vm(name: &str, vcpus: u32, cpus: &[u32], memory_mib: u64, workload: Workload) -> Vm {
    let pin = if cpus.is_empty() { Vec::new() } else { vec![cpus.to_vec(); vcpus as usize] };
    Vm { name: name.into(), vcpus, memory_mib, pin, pin_other: Vec::new(), workload }
}

/// Three VMs that never stop computing, each with as many vCPUs as the guest under test: it gets about a quarter of the CPUs.
fn hogs(vcpus: u32, cpus: &[u32], size: &Size) -> Vec<Vm> {
    (1..=3)
        .map(|i| {
            let hog = Workload::Hog { threads: vcpus };
            vm(&format!("hog{i}"), vcpus, cpus, size.small_memory(vcpus), hog)
        })
        .collect()
}
