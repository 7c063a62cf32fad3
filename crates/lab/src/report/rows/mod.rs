// SPDX-License-Identifier: MIT OR Apache-2.0
//! All rows of the table, in the order in which they are shown.
//!
//! A new figure is one [`row`] here; every rendering (terminal, JSON) then shows
//! it. `docs/results.md` lists the keys.

mod watched;

pub(super) use watched::notices;

use super::load::{Phase, Run};
use super::metric::{Better, Measured, Metric, bounded, mib, ms, quotient, row};
use super::stats::{Bound, Distribution};
use Better::{Higher, Lower, Neither};
use reprieve_init::protocol::{Figure, Workload};
use std::collections::BTreeSet;

const SURVIVAL: &str = "Survival";
const GP: &str = "Grace periods";
const MEMORY: &str = "Memory";
const WORK: &str = "Work and CPU";
const CALLBACKS: &str = "Callbacks";
const HOST: &str = "Host";
const MEASURING: &str = "Measuring";

/// All rows of `run`, in order.
pub fn metrics(run: &Run) -> Vec<Metric> {
    let mut rows = fixed();
    let unit = run
        .phases
        .iter()
        .filter_map(|p| p.end.as_ref())
        .map(|(r, _)| &r.unit)
        .find(|u| !u.is_empty());
    for row in &mut rows {
        if row.info.key == "throughput" {
            row.info.unit = unit.map_or_else(|| "1/s".into(), |u| format!("{}/s", plural(u)));
        }
    }
    let at = rows.iter().position(|m| m.info.group == MEASURING).unwrap_or(rows.len());
    let unit = unit.map(|u| plural(u));
    rows.splice(at..at, watched::rows(run).into_iter().chain(host_rows(run, unit)));
    rows.splice(0..0, figure_rows(run));
    rows.splice(0..0, survival(run));
    rows
}

/// Rows for runs in which a guest may die of its load.
fn survival(run: &Run) -> Vec<Metric> {
    let deadly = matches!(run.plan.subject.workload, Workload::SemChurn { .. });
    if !deadly && run.phases.iter().all(|p| p.death.is_none()) {
        return vec![];
    }
    let first = |m: &Measured| {
        let deaths = m.phases.iter().filter_map(|p| p.death.as_ref());
        deaths.map(|d| d.after_ns as f64 / 1e9).reduce(f64::min)
    };
    vec![
        row(SURVIVAL, "survived", "Phases survived, of all", "%", Higher, |m| {
            quotient(m.phases.iter().map(|p| (if p.death.is_none() { 100.0 } else { 0.0 }, 1.0)))
        }),
        row(SURVIVAL, "out_of_memory", "Out of memory after", "s", Higher, first),
    ]
}

/// The figures of a workload that measures by itself, one row each. Its samples are not recorded,
/// so the figure of several repeats is their median.
fn figure_rows(run: &Run) -> Vec<Metric> {
    let ended = run.phases.iter().filter_map(|p| p.end.as_ref());
    let mut known = BTreeSet::new();
    let mut rows = vec![];
    for figure in ended.flat_map(|(result, _)| &result.figures) {
        let Figure { subject, group, measure, unit, better, .. } = figure;
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
        rows.push(bounded(&heading, &key, subject, unit, *better, move |m| {
            let all = || m.results().flat_map(|r| &r.figures).filter(&same);
            let values = Distribution::new(all().map(|f| f.value))?;
            // A larger one above the middle would not move the median.
            let middle = values.sorted()[values.sorted().len() / 2];
            let bound = all().any(|f| f.at_least && f.value <= middle);
            Some((values.median(), bound.then_some(Bound::AtLeast)))
        }));
    }
    // Rows with the same heading come together; headings keep the order of their first rows.
    let headings: Vec<String> = rows.iter().map(|r| r.info.group.clone()).collect();
    rows.sort_by_key(|r| headings.iter().position(|h| *h == r.info.group));
    rows
}

/// A row for the guest under test, whose VM has a different name in each variant, and one per
/// competitor. `unit`: what the throughput counts, if there is any.
fn host_rows(run: &Run, unit: Option<String>) -> Vec<Metric> {
    let guests = run.plan.guests();
    let subject = move |p: &Phase, run: &Run| {
        let place = guests.get(p.variant).copied();
        let guest = run.guests.iter().rev().find(|g| g.variant == place);
        Some(guest.map_or_else(|| run.plan.subject.name.clone(), |g| g.vm.clone()))
    };
    let subject_cpu = subject.clone();
    let mut rows = vec![row(HOST, "host_cpu_subject", "Host CPU, tested guest", "%", Neither, {
        move |m: &Measured| m.host_share(|p| subject_cpu(p, m.run))
    })];
    // The gain that a scheduler can still make without giving the guest more CPU time: alone,
    // nothing is lost to preemption.
    rows.extend(unit.map(|unit| {
        row(HOST, "work_per_cpu_second", "Work per CPU second, tested guest", &unit, Higher, {
            move |m: &Measured| {
                quotient(m.phases.iter().filter_map(|p| {
                    let (result, host) = p.end.as_ref().filter(|(r, _)| r.elapsed_ns > 0)?;
                    let ns = *host.cpu_ns.get(&subject(p, m.run)?)?;
                    Some((result.operations, ns as f64 / 1e9))
                }))
            }
        })
    }));
    let names: BTreeSet<&String> = run.plan.competitors.iter().map(|vm| &vm.name).collect();
    for name in names {
        let label = format!("Host CPU, {name}");
        let vm = name.clone();
        rows.push(row(HOST, &format!("host_cpu.{name}"), &label, "%", Neither, move |m| {
            m.host_share(|_| Some(vm.clone()))
        }));
    }
    // Unknown in runs of an earlier version, and on some hosts.
    if run.phases.iter().filter_map(Phase::other_busy).next().is_some() {
        let label = "Other load on the machine";
        rows.push(row(HOST, "host_other", label, "%", Lower, |m| {
            quotient(m.phases.iter().filter_map(|p| {
                let (_, host) = p.end.as_ref()?;
                let ns = host.elapsed_ns as f64;
                Some((100.0 * p.other_busy()? * ns, ns))
            }))
        }));
    }
    rows
}

/// The rows that every run has.
fn fixed() -> Vec<Metric> {
    [grace_periods(), memory(), work(), callbacks(), measuring()].into_iter().flatten().collect()
}

/// Rows that any run can have, for checking names against.
#[cfg(test)]
pub(super) fn known() -> Vec<Metric> {
    fixed().into_iter().chain(watched::readers()).collect()
}

fn grace_periods() -> Vec<Metric> {
    vec![
        row(GP, "gp_mean", "GP mean", "ms", Lower, |m| Some(m.durations()?.mean())),
        row(GP, "gp_sd", "GP standard deviation", "ms", Lower, |m| m.durations()?.sd()),
        bounded(GP, "gp_max", "GP max", "ms", Lower, |m| m.longest()),
        row(GP, "gp_min", "GP min", "ms", Lower, |m| Some(m.durations()?.min())),
        row(GP, "gp_p90", "GP p90", "ms", Lower, |m| Some(m.durations()?.percentile(90.0))),
        row(GP, "gp_p50", "GP p50", "ms", Lower, |m| Some(m.durations()?.percentile(50.0))),
        row(GP, "gp_count", "Number of GPs", "", Neither, |m| Some(m.durations()?.count() as f64)),
        row(GP, "gp_cpu", "CPU per GP", "us", Lower, |m| {
            let all = m.phases.iter().flat_map(|p| &p.grace_periods);
            // Every grace period takes CPU time: zeroes only mean that it was not measured.
            quotient(all.map(|g| (g.cpu_ns as f64 / 1e3, 1.0))).filter(|&v| v > 0.0)
        }),
        row(GP, "gp_cpu_p50", "CPU per GP, median", "us", Lower, |m| {
            let all = m.phases.iter().flat_map(|p| &p.grace_periods);
            let all = Distribution::new(all.map(|g| g.cpu_ns as f64 / 1e3))?;
            Some(all.percentile(50.0)).filter(|_| all.max() > 0.0)
        }),
    ]
}

fn memory() -> Vec<Metric> {
    vec![
        row(MEMORY, "memory_peak", "Peak memory used", "MiB", Lower, |m| {
            m.phases.iter().flat_map(|p| &p.memory).map(|s| mib(s.used_kb)).reduce(f64::max)
        }),
        row(MEMORY, "memory_mean", "Mean memory used", "MiB", Lower, |m| {
            quotient(m.phases.iter().flat_map(|p| &p.memory).map(|s| (mib(s.used_kb), 1.0)))
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
    ]
}

/// The most that free memory fell, at any time, below any earlier level of the phase, MiB. Unlike
/// growth it does not depend on how much was in use when the phase began.
fn spike(phase: &Phase) -> Option<f64> {
    let mut highest = phase.memory.first()?.free_kb;
    let mut spike = 0;
    for sample in &phase.memory {
        highest = highest.max(sample.free_kb);
        spike = spike.max(highest - sample.free_kb);
    }
    Some(mib(spike))
}

fn work() -> Vec<Metric> {
    vec![
        row(WORK, "throughput", "Throughput", "", Higher, |m| {
            let unit = m.results().any(|r| !r.unit.is_empty());
            m.per_second(|r| r.operations).filter(|_| unit)
        }),
        row(WORK, "vcpu_preemptions", "vCPU preemptions", "1/s", Lower, |m| {
            quotient(m.hosts().map(|h| (h.vcpu_preemptions as f64, h.elapsed_ns as f64 / 1e9)))
        }),
        row(WORK, "vcpu_wait", "vCPU wait share", "%", Lower, |m| {
            let vcpus = f64::from(m.run.plan.subject.vcpus);
            // A preempted vCPU has waited: preemptions without any wait mean that this host does
            // not count the waiting.
            let tells =
                m.hosts().any(|h| h.vcpu_wait_ns > 0) || m.hosts().all(|h| h.vcpu_preemptions == 0);
            quotient(
                m.hosts().map(|h| (100.0 * h.vcpu_wait_ns as f64, h.elapsed_ns as f64 * vcpus)),
            )
            .filter(|_| tells)
        }),
        row(WORK, "steal", "Steal seen by the guest", "%", Lower, |m| {
            // Only KVM reports steal time to its guests.
            m.cpu_share(|c| c.steal).filter(|_| m.run.host.mode != "tcg")
        }),
        row(WORK, "kernel_share", "Kernel, of CPU time used", "%", Neither, |m| {
            // A share of the used CPU time, so that stolen and idle time does not change it.
            let (kernel, user) = (m.cpu_share(|c| c.kernel)?, m.cpu_share(|c| c.user)?);
            quotient(std::iter::once((100.0 * kernel, kernel + user)))
        }),
    ]
}

/// Words get a plural (`files`), symbols do not (`MB`).
fn plural(unit: &str) -> String {
    let word = unit.ends_with(|c: char| c.is_lowercase());
    format!("{unit}{}", if word { "s" } else { "" })
}

fn callbacks() -> Vec<Metric> {
    let waiting = |m: &Measured| {
        let all = m.phases.iter().flat_map(|p| &p.cpu);
        all.filter_map(|c| c.callbacks).max().map(|n| n as f64)
    };
    vec![row(CALLBACKS, "callbacks_waiting", "Callbacks waiting, peak", "", Lower, waiting)]
}

fn measuring() -> Vec<Metric> {
    vec![
        row(MEASURING, "trace_rate", "Trace events", "1/s", Neither, |m| {
            m.per_second(|r| r.cost.trace_events as f64)
        }),
        row(MEASURING, "trace_lost", "Trace events lost", "", Lower, |m| {
            m.results().map(|r| r.cost.trace_lost as f64).reduce(|a, b| a + b)
        }),
        row(MEASURING, "longest_gap", "Longest sampling gap", "ms", Lower, |m| {
            let gap = m.results().map(|r| ms(r.cost.longest_gap_ns)).reduce(f64::max);
            gap.filter(|&v| v > 0.0)
        }),
    ]
}
