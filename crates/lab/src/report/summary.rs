// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run: what `summary.json` holds (documented in `docs/results.md`) and every table
//! shows.

use super::format;
use super::load::{Guest, Phase, Run};
use super::metric::{Measured, Metric, MetricInfo};
use super::papers::{self, PaperFigure};
use super::rows;
use super::stats::{self, Bound, Spread, spread};
use crate::costs::Costs;
use crate::plan::{Plan, Scenario, Variant};
use crate::record::{HostInfo, LOUD};
use serde::{Deserialize, Serialize};

/// Raised when a field of the summary changes its meaning or is removed, not for new fields or
/// rows.
pub const SUMMARY_SCHEMA: u32 = 4;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub schema: u32,
    pub experiment: String,
    /// RFC 3339, UTC.
    pub started: String,
    /// Whether everything planned was done.
    pub complete: bool,
    /// Why not.
    pub incomplete_reason: Option<String>,
    /// How percentiles are taken: `nearest rank`.
    pub percentiles: String,
    pub plan: Plan,
    pub host: HostInfo,
    pub guests: Vec<Guest>,
    /// The costs of switches, exits and interrupts on the VMs' host, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<Costs>,
    pub notices: Vec<String>,
    /// The meaning of the rows, in the order of the table.
    pub metrics: Vec<MetricInfo>,
    pub variants: Vec<VariantSummary>,
}

/// The table of one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantSummary {
    pub variant: Variant,
    /// A per entry of [`Summary::metrics`], in its order.
    pub rows: Vec<Row>,
}

/// A figure of a variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub key: String,
    /// `None` if it was not measured; likewise the figures below.
    pub baseline: Option<Cell>,
    pub overcommit: Option<Cell>,
    /// Overcommit over baseline. `None` also where both are bounds.
    pub ratio: Option<f64>,
    /// The kind of bound of the ratio, where one of them is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_bound: Option<Bound>,
    pub paper: Option<PaperFigure>,
}

/// A figure with its repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Over the samples of all repeats together.
    pub value: f64,
    /// The kind of bound of `value`, if the figure itself is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// Each repeat's own figure, or the bound of it, by repeat.
    pub repeats: Vec<Option<f64>>,
    /// Spread of the repeats' figures; `None` for fewer than two.
    pub spread: Option<Spread>,
    /// Other work disturbed a phase of it: no ratio is made of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
}

impl Summary {
    /// The metric of a row.
    pub fn metric(&self, key: &str) -> Option<&MetricInfo> {
        self.metrics.iter().find(|m| m.key == key)
    }
}

impl VariantSummary {
    pub fn row(&self, key: &str) -> Option<&Row> {
        self.rows.iter().find(|r| r.key == key)
    }
}

impl Cell {
    /// `self` over `under`, and which bound that is.
    pub fn over(&self, under: &Cell) -> Option<stats::Bounded> {
        let quiet = !self.disturbed && !under.disturbed;
        stats::ratio(self.bounded(), under.bounded()).filter(|_| quiet)
    }

    /// The same in another unit.
    pub fn times(&self, factor: f64) -> Cell {
        let spread = self.spread.map(|s| Spread { min: s.min * factor, max: s.max * factor, ..s });
        let repeats =
            self.repeats.iter().map(|repeat| repeat.map(|value| value * factor)).collect();
        Cell { value: self.value * factor, spread, repeats, ..*self }
    }

    /// The figure, and which bound it is.
    pub fn bounded(&self) -> stats::Bounded {
        (self.value, self.bound)
    }
}

impl Row {
    /// The ratio, and which bound it is.
    pub fn bounded_ratio(&self) -> Option<stats::Bounded> {
        Some((self.ratio?, self.ratio_bound))
    }

    pub fn cell(&self, scenario: Scenario) -> Option<&Cell> {
        match scenario {
            Scenario::Baseline => self.baseline.as_ref(),
            Scenario::Overcommit => self.overcommit.as_ref(),
        }
    }
}

/// Share of the machine's CPU time that other work may use without a notice.
const QUIET: f64 = 0.05;

const MARKED: &str = "; figures marked ? decide nothing";

/// Computes every figure of `run`.
pub fn summarize(run: &Run) -> Summary {
    let metrics = rows::metrics(run);
    let variants = run
        .plan
        .variants
        .iter()
        .enumerate()
        .map(|(index, variant)| VariantSummary {
            variant: variant.clone(),
            rows: variant_rows(run, index, &metrics),
        })
        .collect();
    Summary {
        schema: SUMMARY_SCHEMA,
        experiment: run.plan.experiment.clone(),
        started: run.started.clone(),
        complete: run.complete,
        incomplete_reason: run.reason.clone(),
        percentiles: "nearest rank".into(),
        plan: run.plan.clone(),
        host: run.host.clone(),
        guests: run.guests.clone(),
        costs: run.costs.clone(),
        notices: notices(run),
        metrics: metrics.into_iter().map(|m| m.info).collect(),
        variants,
    }
}

fn variant_rows(run: &Run, variant: usize, metrics: &[Metric]) -> Vec<Row> {
    let baseline = Condition::new(run, variant, Scenario::Baseline);
    let overcommit = Condition::new(run, variant, Scenario::Overcommit);
    let row = |metric: &Metric| {
        let (baseline, overcommit) = (baseline.cell(metric), overcommit.cell(metric));
        let both = overcommit.as_ref().zip(baseline.as_ref());
        let ratio = both.and_then(|(over, base)| over.over(base));
        Row {
            key: metric.info.key.clone(),
            baseline,
            overcommit,
            ratio: ratio.map(|(value, _)| value),
            ratio_bound: ratio.and_then(|(_, bound)| bound),
            paper: papers::figure(&run.plan.experiment, &metric.info.key),
        }
    };
    metrics.iter().map(row).collect()
}

/// The repeats of one scenario, each alone and all together.
struct Condition<'a> {
    all: Measured<'a>,
    repeats: Vec<Option<Measured<'a>>>,
}

impl<'a> Condition<'a> {
    fn new(run: &'a Run, variant: usize, scenario: Scenario) -> Condition<'a> {
        let phases = run.measured(variant, scenario);
        let last = phases.keys().next_back().map_or(0, |&r| r + 1);
        let repeats = (0..last).map(|r| Some(Measured::new(run, vec![*phases.get(&r)?]))).collect();
        Condition { all: Measured::new(run, phases.into_values().collect()), repeats }
    }

    fn cell(&self, metric: &Metric) -> Option<Cell> {
        let repeats: Vec<Option<f64>> =
            self.repeats.iter().map(|r| Some(metric.value(r.as_ref()?)?.0)).collect();
        let (value, bound) = metric.value(&self.all)?;
        let spread = spread(repeats.iter().flatten().copied());
        let disturbed = self.all.phases.iter().any(|phase| phase.is_loud());
        Some(Cell { value, bound, spread, repeats, disturbed })
    }
}

/// Remarks for the reader of the table: the run's own notices, and what the records show.
fn notices(run: &Run) -> Vec<String> {
    let mut notices = run.notices.clone();
    for phase in run.phases.iter().filter(|p| !p.is_over()) {
        notices.push(format!(
            "phase {} ({}, {}, repeat {}) did not end: its {} samples are not in the table",
            phase.id,
            run.plan.variants[phase.variant].label,
            scenario_name(phase.scenario),
            phase.repeat + 1,
            phase.samples()
        ));
    }
    for phase in &run.phases {
        if let Some(death) = &phase.death {
            notices.push(format!(
                "{}, {}, repeat {}: out of memory after {:.1} s: {}{}",
                run.plan.variants[phase.variant].label,
                scenario_name(phase.scenario),
                phase.repeat + 1,
                death.after_ns as f64 / 1e9,
                death.line,
                death.log.iter().map(|log| format!(" ({})", log.display())).collect::<String>()
            ));
        }
    }
    notices.extend(rows::notices(run));
    notices.extend(disturbed(run));
    for (index, variant) in run.plan.variants.iter().enumerate() {
        for &scenario in &run.plan.scenarios {
            let phases = run.measured(index, scenario);
            let missing = run.plan.repeat as usize - phases.len();
            if missing > 0 {
                notices.push(format!(
                    "{}, {}: {missing} of {} repeats missing",
                    variant.label,
                    scenario_name(scenario),
                    run.plan.repeat
                ));
            }
            for phase in phases.values() {
                if let Some(open_ms) = Measured::new(run, vec![*phase]).oldest_open() {
                    notices.push(format!(
                        "{}, {}, repeat {}: a grace period was in progress at the end of the phase and at least {} ms old, older than all that ended: the longest takes at least that, and mean and percentiles are too low",
                        variant.label,
                        scenario_name(scenario),
                        phase.repeat + 1,
                        format::number(open_ms)
                    ));
                }
            }
            if let Some(lost) = lost(run, phases.values().copied()) {
                notices.push(format!("{}, {}: {lost}", variant.label, scenario_name(scenario)));
            }
        }
    }
    notices
}

/// A notice that the grace periods of some of these phases are those of their beginning.
fn lost<'a>(run: &Run, phases: impl Iterator<Item = &'a Phase>) -> Option<String> {
    let costs = phases.filter(|p| p.is_cut()).filter_map(|p| Some(&p.end.as_ref()?.0.cost));
    let costs: Vec<_> = costs.collect();
    let lost = costs.iter().map(|cost| cost.trace_lost).reduce(|a, b| a + b)?;
    // Unknown in runs of earlier versions.
    let until = costs.iter().map(|cost| cost.trace_until_ns).min().flatten();
    let first = match until {
        Some(ns) => format!("the first {} s", format::number(ns as f64 / 1e9)),
        None => "the beginning".into(),
    };
    Some(format!(
        "{lost} trace events lost, since the guest's buffer was full: the rows of grace periods are those of {first} of a phase of {} s: take a --phase no longer than that",
        format::number(run.plan.phase_ms as f64 / 1e3)
    ))
}

/// A notice if other work disturbed phases that are in the table.
fn disturbed(run: &Run) -> Option<String> {
    let scenarios = [Scenario::Baseline, Scenario::Overcommit];
    let conditions = (0..run.plan.variants.len()).flat_map(|v| scenarios.map(|s| (v, s)));
    let shares: Vec<f64> = conditions
        .flat_map(|(variant, scenario)| run.measured(variant, scenario).into_values())
        .filter_map(Phase::other_busy)
        .collect();
    let loud = shares.iter().filter(|&&share| share > QUIET).count();
    let most = shares.iter().copied().fold(0.0, f64::max);
    (loud > 0).then(|| {
        format!(
            "this machine was not quiet: something else used more than {:.0} % of its CPU time in {loud} of {} phases, up to {:.0} %{}",
            100.0 * QUIET,
            shares.len(),
            100.0 * most,
            if most > LOUD { MARKED } else { "" }
        )
    })
}

pub fn scenario_name(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Baseline => "baseline",
        Scenario::Overcommit => "overcommit",
    }
}
