// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the table, as data.
//!
//! A row is a key, a label, a unit and a function from a set of phases to a figure. Given one phase it yields that repeat's
//! figure; given those of all repeats it yields the figure over all their samples together (a mean over all grace periods, a peak
//! over all repeats), so that both mean the same. `None` says that it was not measured.

use super::load::{Phase, Run};
use super::outside;
use super::stats::Distribution;
use crate::record::HostPhase;
use reprieve_init::protocol::{Figure, MeasureCost, PhaseResult};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// Huge pages on x86-64: order 9.
pub const HUGE_ORDER: usize = 9;

/// What a row is, apart from its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricInfo {
    /// Stable name, for programs.
    pub key: String,
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub group: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Lower,
    Higher,
    /// Says something about the run, not about how good it was.
    Neither,
}

type Value = Box<dyn Fn(&Measured) -> Option<f64>>;

/// A row of the table.
pub struct Metric {
    pub info: MetricInfo,
    value: Value,
}

impl Metric {
    pub fn value(&self, measured: &Measured) -> Option<f64> {
        (self.value)(measured).filter(|v| v.is_finite())
    }
}

/// Phases of one variant and scenario that ended, one per repeat.
pub struct Measured<'a> {
    run: &'a Run,
    phases: Vec<&'a Phase>,
    durations: OnceCell<Option<Distribution>>,
    latencies: OnceCell<Option<Distribution>>,
}

impl<'a> Measured<'a> {
    pub fn new(run: &'a Run, phases: Vec<&'a Phase>) -> Measured<'a> {
        Measured { run, phases, durations: OnceCell::new(), latencies: OnceCell::new() }
    }

    /// Durations of the grace periods, ms.
    pub fn durations(&self) -> Option<&Distribution> {
        let all = || self.phases.iter().flat_map(|p| &p.grace_periods);
        self.durations
            .get_or_init(|| {
                Distribution::new(all().map(|g| ms(g.end_ns.saturating_sub(g.start_ns))))
            })
            .as_ref()
    }

    /// Latencies of the probe callbacks, ms.
    pub fn latencies(&self) -> Option<&Distribution> {
        let all = || self.phases.iter().flat_map(|p| &p.callbacks);
        self.latencies.get_or_init(|| Distribution::new(all().map(|c| ms(c.latency_ns)))).as_ref()
    }

    fn results(&self) -> impl Iterator<Item = &PhaseResult> {
        self.phases
            .iter()
            .filter_map(|p| p.end.as_ref())
            .map(|(r, _)| r)
            .filter(|r| r.elapsed_ns > 0)
    }

    /// Phases that the host watched: without any time elapsed it did not.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &HostPhase> {
        self.phases
            .iter()
            .filter_map(|p| p.end.as_ref())
            .map(|(_, h)| h)
            .filter(|h| h.elapsed_ns > 0)
    }

    /// Sum over the phases of `part`, over that of their duration, s.
    fn per_second(&self, part: impl Fn(&PhaseResult) -> f64) -> Option<f64> {
        quotient(self.results().map(|r| (part(r), r.elapsed_ns as f64 / 1e9)))
    }

    /// Percentage of the guest's CPU capacity that `ns` of CPU time is.
    fn guest_share(&self, ns: impl Fn(&MeasureCost) -> f64) -> Option<f64> {
        let vcpus = f64::from(self.run.plan.subject.vcpus);
        quotient(self.results().map(|r| (100.0 * ns(&r.cost), r.elapsed_ns as f64 * vcpus)))
    }

    /// Percentage: mean of a share in the CPU samples, each weighted by the time it stands for.
    fn cpu_share(&self, share: impl Fn(&super::load::Cpu) -> f64) -> Option<f64> {
        quotient(self.phases.iter().flat_map(|p| {
            let before = std::iter::once(0).chain(p.cpu.iter().map(|c| c.t_ns));
            p.cpu.iter().zip(before).map(|(c, t0)| {
                let span = c.t_ns.saturating_sub(t0) as f64;
                (100.0 * share(c) * span, span)
            })
        }))
    }

    fn unusable(&self) -> Option<Distribution> {
        let all = self.phases.iter().flat_map(|p| &p.fragmentation);
        Distribution::new(all.filter_map(|f| f.unusable.get(HUGE_ORDER).copied()))
    }

    /// Percentage of the host's CPU capacity used by the VM that `name` picks.
    fn host_share(&self, name: impl Fn(&Phase) -> Option<String>) -> Option<f64> {
        let cpus = f64::from(self.run.host.cpus);
        quotient(self.phases.iter().filter_map(|p| {
            let (_, host) = p.end.as_ref().filter(|(_, h)| h.elapsed_ns > 0)?;
            let ns = *host.cpu_ns.get(&name(p)?)?;
            Some((100.0 * ns as f64, host.elapsed_ns as f64 * cpus))
        }))
    }
}

/// The most that free memory fell, at any time, below any earlier level of the phase, MiB. Unlike growth it does not depend on how much
/// was in use when the phase began.
fn spike(phase: &Phase) -> Option<f64> {
    let mut highest = phase.memory.first()?.free_kb;
    let mut spike = 0;
    for sample in &phase.memory {
        highest = highest.max(sample.free_kb);
        spike = spike.max(highest - sample.free_kb);
    }
    Some(mib(spike))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn mib(kb: u64) -> f64 {
    kb as f64 / 1024.0
}

/// Sum of the first over sum of the second; `None` without anything to divide by.
fn quotient(parts: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (a, b) = parts.fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    (b > 0.0).then(|| a / b)
}

/// `unit` per second: words get a plural (`files/s`), symbols do not (`MB/s`).
fn rate(unit: &str) -> String {
    let word = unit.ends_with(|c: char| c.is_lowercase());
    format!("{unit}{}/s", if word { "s" } else { "" })
}

/// All rows of `run`, in order.
pub fn metrics(run: &Run) -> Vec<Metric> {
    let probes = run.plan.measure.callback_probe_hz > 0;
    let mut rows: Vec<Metric> = fixed();
    // Rows of a measurement that the plan did not ask for would only be dashes.
    rows.retain(|m| probes || !m.info.key.starts_with("callback_latency"));
    let unit = run
        .phases
        .iter()
        .filter_map(|p| p.end.as_ref())
        .map(|(r, _)| &r.unit)
        .find(|u| !u.is_empty());
    for row in &mut rows {
        if row.info.key == "throughput" {
            row.info.unit = unit.map_or_else(|| "1/s".into(), |u| rate(u));
        }
    }
    let at = rows.iter().position(|m| m.info.group == COST).unwrap_or(rows.len());
    rows.splice(at..at, outside::rows(run).into_iter().chain(host_rows(run)));
    rows.splice(0..0, figure_rows(run));
    rows
}

/// What a workload that measures by itself found: a row per figure. Its samples are not known here, so the figure of several repeats is their median.
fn figure_rows(run: &Run) -> Vec<Metric> {
    let ended = run.phases.iter().filter_map(|p| p.end.as_ref());
    let mut known = BTreeSet::new();
    let mut rows = vec![];
    for figure in ended.flat_map(|(result, _)| &result.figures) {
        let Figure { subject, group, measure, unit, .. } = figure;
        let key = format!("bench.{measure}.{group}.{subject}").replace(", ", "_").replace(' ', "_");
        if !known.insert(key.clone()) {
            continue;
        }
        let heading = match group.as_str() {
            "" => format!("Programs: {measure}"),
            group => format!("Programs, {group}: {measure}"),
        };
        let same = {
            let (subject, group, measure) = (subject.clone(), group.clone(), measure.clone());
            move |f: &&Figure| f.subject == subject && f.group == group && f.measure == measure
        };
        rows.push(row(&heading, &key, subject, unit, Better::Lower, move |m| {
            let all = m.results().flat_map(|r| &r.figures).filter(&same).map(|f| f.value);
            Some(Distribution::new(all)?.percentile(50.0))
        }));
    }
    // Rows of a heading are in one place, headings in the order in which they came.
    let headings: Vec<String> = rows.iter().map(|r| r.info.group.clone()).collect();
    rows.sort_by_key(|r| headings.iter().position(|h| *h == r.info.group));
    rows
}

/// One row for the guest under test, whatever its VM is called in each variant, and one per competitor.
fn host_rows(run: &Run) -> Vec<Metric> {
    let subject = |p: &Phase, run: &Run| {
        let guest = run.guests.iter().rev().find(|g| g.variant == Some(p.variant));
        Some(guest.map_or_else(|| run.plan.subject.name.clone(), |g| g.vm.clone()))
    };
    let mut rows =
        vec![row(HOST, "host_cpu_subject", "Host CPU, tested guest", "%", Better::Neither, {
            move |m: &Measured| m.host_share(|p| subject(p, m.run))
        })];
    let names: BTreeSet<&String> = run.plan.competitors.iter().map(|vm| &vm.name).collect();
    for name in names {
        let label = format!("Host CPU, {name}");
        let vm = name.clone();
        rows.push(row(HOST, &format!("host_cpu.{name}"), &label, "%", Better::Neither, move |m| {
            m.host_share(|_| Some(vm.clone()))
        }));
    }
    // Not known of runs of an earlier version, nor on every host.
    if run.phases.iter().filter_map(Phase::other_busy).next().is_some() {
        let label = "Other load on the machine";
        rows.push(row(HOST, "host_other", label, "%", Better::Lower, |m| {
            quotient(m.phases.iter().filter_map(|p| {
                let (_, host) = p.end.as_ref()?;
                let ns = host.elapsed_ns as f64;
                Some((100.0 * p.other_busy()? * ns, ns))
            }))
        }));
    }
    rows
}

const GP: &str = "Grace periods";
const MEMORY: &str = "Memory";
const WORK: &str = "Work and CPU";
const CALLBACKS: &str = "Callbacks";
const HOST: &str = "Host";
const COST: &str = "Cost of measuring";

pub(super) fn row(
    group: &str,
    key: &str,
    label: &str,
    unit: &str,
    better: Better,
    value: impl Fn(&Measured) -> Option<f64> + 'static,
) -> Metric {
    let info = MetricInfo {
        key: key.into(),
        label: label.into(),
        unit: unit.into(),
        better,
        group: group.into(),
    };
    Metric { info, value: Box::new(value) }
}

/// The rows that every run has.
pub(super) fn fixed() -> Vec<Metric> {
    use Better::{Higher, Lower, Neither};
    let mut rows = vec![
        row(GP, "gp_mean", "GP mean", "ms", Lower, |m| Some(m.durations()?.mean())),
        row(GP, "gp_sd", "GP standard deviation", "ms", Lower, |m| m.durations()?.sd()),
        row(GP, "gp_max", "GP max", "ms", Lower, |m| Some(m.durations()?.max())),
        row(GP, "gp_min", "GP min", "ms", Lower, |m| Some(m.durations()?.min())),
        row(GP, "gp_p90", "GP p90", "ms", Lower, |m| Some(m.durations()?.percentile(90.0))),
        row(GP, "gp_p50", "GP p50", "ms", Lower, |m| Some(m.durations()?.percentile(50.0))),
        row(GP, "gp_count", "Number of GPs", "", Neither, |m| Some(m.durations()?.count() as f64)),
        row(GP, "gp_cpu", "CPU per GP", "us", Lower, |m| {
            let all = m.phases.iter().flat_map(|p| &p.grace_periods);
            // No grace period is free: all zeroes mean that nothing told.
            quotient(all.map(|g| (g.cpu_ns as f64 / 1e3, 1.0))).filter(|&v| v > 0.0)
        }),
        row(GP, "gp_cpu_p50", "CPU per GP, median", "us", Lower, |m| {
            let all = m.phases.iter().flat_map(|p| &p.grace_periods);
            let all = Distribution::new(all.map(|g| g.cpu_ns as f64 / 1e3))?;
            Some(all.percentile(50.0)).filter(|_| all.max() > 0.0)
        }),
        row(MEMORY, "memory_peak", "Peak memory used", "MiB", Lower, |m| {
            m.phases.iter().flat_map(|p| &p.memory).map(|s| mib(s.used_kb)).reduce(f64::max)
        }),
        row(MEMORY, "memory_growth", "Peak growth in phase", "MiB", Lower, |m| {
            let growth = |p: &&Phase| {
                let least = p.memory.iter().map(|s| s.free_kb).min()?;
                Some(mib(p.memory.first()?.free_kb - least))
            };
            m.phases.iter().filter_map(growth).reduce(f64::max)
        }),
        row(MEMORY, "memory_spike", "Largest spike", "MiB", Lower, |m| {
            m.phases.iter().filter_map(|p| spike(p)).reduce(f64::max)
        }),
        row(MEMORY, "slab_peak", "Slab peak", "MiB", Lower, |m| {
            m.phases.iter().flat_map(|p| &p.memory).map(|s| mib(s.slab_kb)).reduce(f64::max)
        }),
        row(MEMORY, "fragmentation_mean", "Unusable for huge pages", "%", Lower, |m| {
            Some(100.0 * m.unusable()?.mean())
        }),
        row(MEMORY, "fragmentation_peak", "Unusable, peak", "%", Lower, |m| {
            Some(100.0 * m.unusable()?.max())
        }),
        row(WORK, "throughput", "Throughput", "", Higher, |m| {
            let unit = m.results().any(|r| !r.unit.is_empty());
            m.per_second(|r| r.operations).filter(|_| unit)
        }),
        row(WORK, "vcpu_preemptions", "vCPU preemptions", "1/s", Lower, |m| {
            quotient(m.hosts().map(|h| (h.vcpu_preemptions as f64, h.elapsed_ns as f64 / 1e9)))
        }),
        row(WORK, "vcpu_wait", "vCPU wait share", "%", Lower, |m| {
            let vcpus = f64::from(m.run.plan.subject.vcpus);
            // A preempted vCPU has waited: preemptions without any wait mean that this host does not tell.
            let tells =
                m.hosts().any(|h| h.vcpu_wait_ns > 0) || m.hosts().all(|h| h.vcpu_preemptions == 0);
            quotient(
                m.hosts().map(|h| (100.0 * h.vcpu_wait_ns as f64, h.elapsed_ns as f64 * vcpus)),
            )
            .filter(|_| tells)
        }),
        row(WORK, "steal", "Steal seen by the guest", "%", Lower, |m| {
            // Only KVM tells its guests.
            m.cpu_share(|c| c.steal).filter(|_| m.run.host.mode != "tcg")
        }),
        row(WORK, "kernel_share", "Kernel, of CPU time used", "%", Neither, |m| {
            // Of what the guest used, not of its capacity: time stolen or idle would dilute it.
            let (kernel, user) = (m.cpu_share(|c| c.kernel)?, m.cpu_share(|c| c.user)?);
            quotient(std::iter::once((100.0 * kernel, kernel + user)))
        }),
    ];
    let waiting = |m: &Measured| {
        let all = m.phases.iter().flat_map(|p| &p.cpu);
        all.filter_map(|c| c.callbacks).max().map(|n| n as f64)
    };
    rows.push(row(CALLBACKS, "callbacks_waiting", "Callbacks waiting, peak", "", Lower, waiting));
    rows.push(row(CALLBACKS, "callback_latency_mean", "Latency mean", "ms", Lower, |m| {
        Some(m.latencies()?.mean())
    }));
    for (p, name) in [(50.0, "p50"), (90.0, "p90"), (99.0, "p99"), (100.0, "max")] {
        let (key, label) = (format!("callback_latency_{name}"), format!("Latency {name}"));
        rows.push(row(CALLBACKS, &key, &label, "ms", Lower, move |m| {
            Some(m.latencies()?.percentile(p))
        }));
    }
    rows.extend([
        row(COST, "sampler_share", "Sampling, share of CPU", "%", Lower, |m| {
            m.guest_share(|c| c.sampler_ns as f64)
        }),
        row(COST, "trace_rate", "Trace events", "1/s", Neither, |m| {
            m.per_second(|r| r.cost.trace_events as f64)
        }),
        row(COST, "trace_share", "Tracing, share of CPU", "%", Lower, |m| {
            m.guest_share(|c| c.trace_events as f64 * c.trace_event_ns).filter(|_| {
                m.results().all(|r| r.cost.trace_events == 0 || r.cost.trace_event_ns > 0.0)
            })
        }),
        row(COST, "trace_lost", "Trace events lost", "", Lower, |m| {
            m.results().map(|r| r.cost.trace_lost as f64).reduce(|a, b| a + b)
        }),
        row(COST, "longest_gap", "Longest sampling gap", "ms", Lower, |m| {
            let gap = m.results().map(|r| ms(r.cost.longest_gap_ns)).reduce(f64::max);
            gap.filter(|&v| v > 0.0)
        }),
    ]);
    rows
}
