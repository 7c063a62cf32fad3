// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what the user asked for to a plan: checks every value and resolves it to numbers.

use super::{MAX_VCPUS, Machine, Size, find};
use crate::dilation::Dilation;
use crate::error::{Error, Result};
use crate::plan::{CpuControl, Plan, SCHEMA, Scenario, Variant, VmPlan};
use crate::policy::Policy;
use reprieve_init::protocol::{Measure, Workload};
use std::str::FromStr;
use std::time::Duration;

/// Options of single experiments, which the others ignore, or of all.
#[derive(Clone, Debug)]
pub struct Options {
    /// vCPUs of the guest under test, for experiments that leave them to the user. `None`: as many
    /// as suit the host.
    pub vcpus: Option<u32>,
    /// `cpu.weight` of the VM under test and of each other. `None`: the experiment's.
    pub weights: Option<Weights>,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { vcpus: None, weights: None, seed: 1 }
    }
}

/// `10:100`: the weight of the VM under test, and that of each of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    subject: u32,
    others: u32,
}

impl FromStr for Weights {
    type Err = Error;

    fn from_str(text: &str) -> Result<Weights> {
        let weight = |text: &str| text.parse().ok().filter(|w| CpuControl::WEIGHTS.contains(w));
        let weights = text.split_once(':').and_then(|(subject, others)| {
            Some(Weights { subject: weight(subject)?, others: weight(others)? })
        });
        weights.ok_or_else(|| {
            let (least, most) = CpuControl::WEIGHTS.into_inner();
            Error::Usage(format!(
                "--weights {text}: give two of {least} to {most}, as in 10:100: the tested VM's cpu.weight and that of each other"
            ))
        })
    }
}

/// The user's request. Every combination of the lists' values becomes a variant.
#[derive(Clone, Debug)]
pub struct Request {
    pub experiment: String,
    pub repeat: u32,
    pub guest_kernels: Vec<String>,
    pub preempt: Vec<Option<String>>,
    pub guest_args: Vec<String>,
    pub policies: Vec<Policy>,
    /// Instead of the usual length.
    pub phase: Option<Duration>,
    pub warmup: Option<Duration>,
    pub options: Options,
    pub command: String,
}

/// Largest values: repeats, phase, length of the kernel parameters.
const MAX_REPEAT: u32 = 1000;
const MAX_PHASE: Duration = Duration::from_secs(3600);
const MAX_ARGS: usize = 1500;

/// dbench reports its throughput once a second, and two reports are needed.
const DBENCH_LEAST: Duration = Duration::from_secs(3);

/// The size of the guest's buffer of events, per CPU, KiB.
fn trace_kb(phase: Duration, subject: &VmPlan) -> u32 {
    // `churn` makes 20,000 events of 24 bytes per second and CPU; twice that. What a longer phase
    // loses, the report says.
    let wanted = (phase.as_secs() as u32).saturating_mul(1024).clamp(2048, 48 << 10);
    // All of them together are a quarter of the guest's memory at most.
    let room = subject.memory_mib * 1024 / 4 / u64::from(subject.vcpus.max(1));
    wanted.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1024)
}

/// Kernel preemption models that `--preempt` takes; a kernel may not have all of them.
pub const PREEMPTION_MODELS: &[&str] = &["none", "voluntary", "full", "lazy"];

/// The shortest warm-up and phase in which the load shows its throughput.
fn least(load: &Workload) -> Duration {
    if matches!(load, Workload::Dbench { .. }) { DBENCH_LEAST } else { Duration::ZERO }
}

impl Request {
    /// Resolves the request for the machine that will run the VMs.
    ///
    /// # Errors
    /// Unknown names, nonsensical values, and a machine that is too small, each with what to do.
    pub fn plan(&self, machine: &Machine) -> Result<Plan> {
        let experiment = find(&self.experiment)?;
        self.check()?;
        let size = Size::new(*machine)?;
        let (mut subject, mut competitors) = (experiment.vms)(&size, &self.options);
        self.check_vcpus(subject.vcpus)?;
        if let Some(weights) = self.options.weights {
            subject.cgroup.weight = weights.subject;
            competitors.iter_mut().for_each(|vm| vm.cgroup.weight = weights.others);
        }
        let (warmup, phase) = self.lengths(&subject.workload)?;
        let plan = Plan {
            schema: SCHEMA,
            experiment: self.experiment.clone(),
            repeat: self.repeat,
            scenarios: Scenario::both(),
            warmup_ms: warmup.as_millis() as u64,
            phase_ms: phase.as_millis() as u64,
            measure: Measure { memory_ms: 20, slow_ms: 1000, trace_kb: trace_kb(phase, &subject) },
            variants: self.variants()?,
            subject,
            competitors,
            seed: self.options.seed,
            command: self.command.clone(),
        };
        size.check_memory(&plan)?;
        Ok(plan)
    }

    /// Shortens `plan`, which was made from this, for a host whose time is dilated by `dilation`:
    /// unless the user gave lengths. A phase there takes that many times as long, and has as many
    /// times more grace periods to show as its guest is faster.
    pub fn shorten(&self, plan: &mut Plan, dilation: Dilation) {
        if dilation.is_none() {
            return;
        }
        let short = |length: &mut u64, given: bool, most: Duration| {
            if !given {
                *length = (*length).min(most.as_millis() as u64);
            }
        };
        let warmup = Duration::from_secs(2).max(least(&plan.subject.workload));
        short(&mut plan.warmup_ms, self.warmup.is_some(), warmup);
        short(&mut plan.phase_ms, self.phase.is_some(), Duration::from_secs(4));
    }

    /// Refuses a number of vCPUs that the experiment does not take: it has made `vcpus` of it.
    fn check_vcpus(&self, vcpus: u32) -> Result<()> {
        let experiment = &self.experiment;
        match self.options.vcpus {
            Some(asked) if asked != vcpus => Err(Error::Usage(format!(
                "--vcpus {asked}: the VMs of {experiment} have sizes of their own: leave it out"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses values that no experiment takes.
    fn check(&self) -> Result<()> {
        let usage = |text: String| Err(Error::Usage(text));
        if !(1..=MAX_REPEAT).contains(&self.repeat) {
            return usage(format!("--repeat {}: give 1 to {MAX_REPEAT}", self.repeat));
        }
        if let Some(vcpus) = self.options.vcpus.filter(|n| !(2..=MAX_VCPUS).contains(n)) {
            return usage(format!(
                "--vcpus {vcpus}: give 2 (else RCU has no other CPU to wait for) to {MAX_VCPUS}"
            ));
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
        Ok(())
    }

    /// Warm-up and phase, as asked for or as usual.
    fn lengths(&self, load: &Workload) -> Result<(Duration, Duration)> {
        let warmup = self.warmup.unwrap_or(Duration::from_secs(6));
        let phase = self.phase.unwrap_or(Duration::from_secs(15));
        let least = least(load);
        let short = phase < least.max(Duration::from_secs(1)) || warmup < least;
        if short || phase.max(warmup) > MAX_PHASE {
            return Err(Error::Usage(format!(
                "--phase {phase:?}, --warmup {warmup:?}: {} takes phases of {} s to {} s, and a warm-up of {} s to as many",
                self.experiment,
                least.as_secs().max(1),
                MAX_PHASE.as_secs(),
                least.as_secs()
            )));
        }
        Ok((warmup, phase))
    }

    /// A variant for each combination of the settings that are compared.
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

    /// The settings in which `variant` differs from the others.
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
            parts.push(variant.policy.to_string());
        }
        if parts.is_empty() { "default".into() } else { parts.join(", ") }
    }
}
