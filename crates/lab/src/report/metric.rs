// SPDX-License-Identifier: MIT OR Apache-2.0
//! A row of the table: a key, a label, a unit and a function.
//!
//! The function takes a set of phases. For one phase it returns the figure of that repeat; for the
//! phases of all repeats it returns the figure over all their samples together (a mean over all
//! grace periods, a peak over all repeats). `None` means that it was not measured.

use super::load::{Phase, Run};
use super::stats::{Bound, Bounded, Distribution};
use crate::record::HostPhase;
pub use reprieve_init::protocol::Better;
use reprieve_init::protocol::{Cpu, PhaseResult};
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;

/// Huge pages on x86-64: order 9.
pub const HUGE_ORDER: usize = 9;

/// The description of a row, without its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricInfo {
    /// Stable name, for programs.
    pub key: String,
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub group: String,
}

type Value = Box<dyn Fn(&Measured) -> Option<Bounded>>;

/// A row of the table.
pub struct Metric {
    pub info: MetricInfo,
    value: Value,
}

impl Metric {
    pub fn value(&self, measured: &Measured) -> Option<Bounded> {
        (self.value)(measured).filter(|(v, _)| v.is_finite())
    }
}

/// The complete phases of one variant and scenario, one per repeat.
pub struct Measured<'a> {
    pub(super) run: &'a Run,
    pub(super) phases: Vec<&'a Phase>,
    durations: OnceCell<Option<Distribution>>,
}

impl<'a> Measured<'a> {
    pub fn new(run: &'a Run, phases: Vec<&'a Phase>) -> Measured<'a> {
        Measured { run, phases, durations: OnceCell::new() }
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

    /// Age of a grace period that was in progress at the end of a phase, ms, if it was older than
    /// all that ended.
    pub(super) fn oldest_open(&self) -> Option<f64> {
        let ended = self.durations().map(Distribution::max);
        let open = self.phases.iter().filter_map(|p| p.open_ns).max().map(ms);
        open.filter(|&open| ended.is_none_or(|ended| open > ended))
    }

    /// The longest grace period, ms; a lower bound if it was in progress at the end of a phase, or
    /// if those of the end of a phase are missing.
    pub(super) fn longest(&self) -> Option<Bounded> {
        match self.oldest_open() {
            Some(open) => Some((open, Some(Bound::AtLeast))),
            None => Some((self.durations()?.max(), self.is_cut().then_some(Bound::AtLeast))),
        }
    }

    /// Whether some grace periods are missing, while the other figures are of whole phases.
    pub(super) fn is_cut(&self) -> bool {
        self.phases.iter().any(|p| p.is_cut())
    }

    pub(super) fn results(&self) -> impl Iterator<Item = &PhaseResult> {
        self.phases
            .iter()
            .filter_map(|p| p.end.as_ref())
            .map(|(r, _)| r)
            .filter(|r| r.elapsed_ns > 0)
    }

    /// The host's counters of the phases that have them.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &HostPhase> {
        self.phases
            .iter()
            .filter_map(|p| p.end.as_ref())
            .map(|(_, h)| h)
            .filter(|h| h.elapsed_ns > 0)
    }

    /// Sum over the phases of `part`, over that of their duration, s.
    pub(super) fn per_second(&self, part: impl Fn(&PhaseResult) -> f64) -> Option<f64> {
        quotient(self.results().map(|r| (part(r), r.elapsed_ns as f64 / 1e9)))
    }

    /// Percentage: mean of a share over the CPU samples, weighted by the time of each sample.
    pub(super) fn cpu_share(&self, share: impl Fn(&Cpu) -> f64) -> Option<f64> {
        quotient(self.phases.iter().flat_map(|p| {
            let before = std::iter::once(0).chain(p.cpu.iter().map(|c| c.t_ns));
            p.cpu.iter().zip(before).map(|(c, t0)| {
                let span = c.t_ns.saturating_sub(t0) as f64;
                (100.0 * share(c) * span, span)
            })
        }))
    }

    pub(super) fn unusable(&self) -> Option<Distribution> {
        let all = self.phases.iter().flat_map(|p| &p.fragmentation);
        Distribution::new(all.filter_map(|f| f.unusable.get(HUGE_ORDER).copied()))
    }

    /// Percentage of the host's CPU capacity used by the VM that `name` picks.
    pub(super) fn host_share(&self, name: impl Fn(&Phase) -> Option<String>) -> Option<f64> {
        let cpus = f64::from(self.run.host.cpus);
        quotient(self.phases.iter().filter_map(|p| {
            let (_, host) = p.end.as_ref().filter(|(_, h)| h.elapsed_ns > 0)?;
            let ns = *host.cpu_ns.get(&name(p)?)?;
            Some((100.0 * ns as f64, host.elapsed_ns as f64 * cpus))
        }))
    }
}

pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn mib(kb: u64) -> f64 {
    kb as f64 / 1024.0
}

/// Sum of the first over sum of the second; `None` without anything to divide by.
pub(super) fn quotient(parts: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (a, b) = parts.fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    (b > 0.0).then(|| a / b)
}

pub(super) fn row(
    group: &str,
    key: &str,
    label: &str,
    unit: &str,
    better: Better,
    value: impl Fn(&Measured) -> Option<f64> + 'static,
) -> Metric {
    bounded(group, key, label, unit, better, move |m| Some((value(m)?, None)))
}

/// A row whose figure may be a bound.
pub(super) fn bounded(
    group: &str,
    key: &str,
    label: &str,
    unit: &str,
    better: Better,
    value: impl Fn(&Measured) -> Option<Bounded> + 'static,
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
