// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of the report: memory and grace-period duration against time (figures 2-4 of "The
//! RCU-Reader Preemption Problem in VMs"), distributions, and how far repeats lie apart.
//!
//! Charts that are to be compared have the same axes: baseline and overcommit of all variants of a
//! run.

pub mod chart;
mod reduce;

use super::load::{Phase, Run};
use super::metric::Measured;
use super::summary::{Summary, scenario_name};
use crate::error::Result;
use crate::plan::Scenario;
use chart::{Axis, Colour, Mark, Series};
use reduce::{Point, cumulative, extremes};
use std::ops::Range;

pub const SCENARIOS: [Scenario; 2] = [Scenario::Baseline, Scenario::Overcommit];

/// Number of time intervals of which the extremes are drawn, over all phases of a page; it bounds
/// the size of the page.
const BUCKETS: usize = 12_000;
/// Intervals of one phase: at most as many as there are pixels, and enough to show the course.
const BUCKETS_PER_PHASE: std::ops::RangeInclusive<usize> = 60..=500;
/// Opacity of repeats after the first.
const FAINT: f64 = 0.35;

pub fn colour(scenario: Scenario) -> Colour {
    match scenario {
        Scenario::Baseline => Colour::BASELINE,
        Scenario::Overcommit => Colour::OVERCOMMIT,
    }
}

/// The scales that all charts of a run share.
pub struct Scales {
    seconds: f64,
    /// Most free memory, KiB, that each variant's guest had in any phase: where its memory axis
    /// begins.
    most_free: Vec<u64>,
    memory: f64,
    duration: f64,
    buckets: usize,
}

impl Scales {
    pub fn of(run: &Run) -> Scales {
        let (least, most) = BUCKETS_PER_PHASE.into_inner();
        let buckets = (BUCKETS / run.phases.len().max(1)).clamp(least, most);
        let whole = || run.phases.iter().filter(|p| p.end.is_some());
        let mut most_free = vec![0; run.plan.variants.len()];
        for phase in whole() {
            let most = &mut most_free[phase.variant];
            *most = phase.memory.iter().map(|m| m.free_kb).fold(*most, u64::max);
        }
        let mut scales = Scales { seconds: 0.0, most_free, memory: 1.0, duration: 1.0, buckets };
        for phase in whole() {
            for (t, mib) in memory(phase, scales.most_free[phase.variant]) {
                scales.seconds = scales.seconds.max(t);
                scales.memory = scales.memory.max(mib);
            }
            for (t, ms) in durations(phase) {
                scales.seconds = scales.seconds.max(t);
                scales.duration = scales.duration.max(ms);
            }
        }
        scales
    }

    fn time(&self) -> Axis {
        Axis { label: "time, s".into(), range: 0.0..self.seconds.max(0.1) }
    }
}

/// Memory in use beyond that with `most_free` KiB free, MiB, by seconds.
fn memory(phase: &Phase, most_free: u64) -> Vec<Point> {
    let used = |free_kb: u64| most_free.saturating_sub(free_kb) as f64 / 1024.0;
    phase.memory.iter().map(|m| (m.t_ns as f64 / 1e9, used(m.free_kb))).collect()
}

/// Duration of each grace period, ms, by the second in which it began.
fn durations(phase: &Phase) -> Vec<Point> {
    let ms = |g: &super::GracePeriod| g.end_ns.saturating_sub(g.start_ns) as f64 / 1e6;
    phase.grace_periods.iter().map(|g| (g.start_ns as f64 / 1e9, ms(g))).collect()
}

/// A series per repeat, the first in front.
fn by_time(
    run: &Run,
    variant: usize,
    scenario: Scenario,
    points: impl Fn(&Phase) -> Vec<Point>,
    mark: Mark,
    buckets: usize,
) -> Vec<Series> {
    let phases: Vec<&Phase> = run.measured(variant, scenario).into_values().collect();
    let series = |(i, phase): (usize, &&Phase)| Series {
        points: extremes(&points(phase), buckets),
        colour: colour(scenario),
        mark,
        opacity: if i == 0 { 1.0 } else { FAINT },
    };
    let mut all: Vec<Series> = phases.iter().enumerate().map(series).collect();
    all.retain(|s| !s.points.is_empty());
    all.reverse();
    all
}

/// Memory against time; `None` without a sample.
pub fn memory_chart(
    run: &Run,
    variant: usize,
    scenario: Scenario,
    scales: &Scales,
) -> Result<Option<String>> {
    let used = |phase: &Phase| memory(phase, scales.most_free[variant]);
    let series = by_time(run, variant, scenario, used, Mark::Line, scales.buckets);
    let y = Axis { label: "memory in use, MiB".into(), range: 0.0..1.05 * scales.memory };
    draw_by_time("Memory", scenario, series, scales, y)
}

/// Grace-period duration against time; `None` without a grace period.
pub fn duration_chart(
    run: &Run,
    variant: usize,
    scenario: Scenario,
    scales: &Scales,
) -> Result<Option<String>> {
    let series = by_time(run, variant, scenario, durations, Mark::Dots, scales.buckets);
    let y = Axis { label: "grace period, ms".into(), range: 0.0..1.05 * scales.duration };
    draw_by_time("Grace-period duration", scenario, series, scales, y)
}

fn draw_by_time(
    what: &str,
    scenario: Scenario,
    series: Vec<Series>,
    scales: &Scales,
    y: Axis,
) -> Result<Option<String>> {
    if series.is_empty() {
        return Ok(None);
    }
    let description = format!("{what} against time, {}", scenario_name(scenario));
    chart::linear(&description, &scales.time(), &y, &series).map(Some)
}

/// The quantity of a distribution.
#[derive(Clone, Copy)]
pub enum Quantity {
    GracePeriods,
    CallbackLatencies,
}

impl Quantity {
    fn sorted<'a>(self, measured: &'a Measured) -> Option<&'a [f64]> {
        let distribution = match self {
            Quantity::GracePeriods => measured.durations(),
            Quantity::CallbackLatencies => measured.latencies(),
        };
        distribution.map(|d| d.sorted())
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Quantity::GracePeriods => {
                ("Distribution of grace-period durations", "grace period, ms")
            }
            Quantity::CallbackLatencies => {
                ("Distribution of callback latencies", "call_rcu to callback, ms")
            }
        }
    }
}

/// Cumulative distribution, both scenarios: all repeats together, and each repeat faintly behind.
/// `None` without a value.
pub fn distribution_chart(run: &Run, variant: usize, quantity: Quantity) -> Result<Option<String>> {
    let mut series = vec![];
    for scenario in SCENARIOS {
        let phases: Vec<&Phase> = run.measured(variant, scenario).into_values().collect();
        let several = phases.len() > 1;
        let single = phases.iter().filter(|_| several).map(|p| (vec![*p], FAINT));
        let all: Vec<(Vec<&Phase>, f64)> = single.chain([(phases.clone(), 1.0)]).collect();
        for (phases, opacity) in all {
            series.extend(cumulative_series(run, phases, quantity, colour(scenario), opacity));
        }
    }
    let Some(range) = value_range(series.iter()) else { return Ok(None) };
    draw_distribution(quantity, &series, range).map(Some)
}

/// Cumulative distributions of several variants, in the colours [`Colour::series`]: a chart
/// per scenario, on the same axes. Without the scenarios that have no value.
pub fn comparison_charts(
    run: &Run,
    variants: Range<usize>,
    quantity: Quantity,
) -> Result<Vec<(Scenario, String)>> {
    let of = |scenario| -> Vec<Series> {
        let series = variants.clone().filter_map(|variant| {
            let phases = run.measured(variant, scenario).into_values().collect();
            cumulative_series(run, phases, quantity, Colour::series(variant), 1.0)
        });
        series.collect()
    };
    let both = SCENARIOS.map(|scenario| (scenario, of(scenario)));
    let Some(range) = value_range(both.iter().flat_map(|(_, series)| series)) else {
        return Ok(vec![]);
    };
    let filled = both.iter().filter(|(_, series)| !series.is_empty());
    filled
        .map(|(s, series)| Ok((*s, draw_distribution(quantity, series, range.clone())?)))
        .collect()
}

fn cumulative_series(
    run: &Run,
    phases: Vec<&Phase>,
    quantity: Quantity,
    colour: Colour,
    opacity: f64,
) -> Option<Series> {
    let measured = Measured::new(run, phases);
    let points = cumulative(quantity.sorted(&measured)?, 400);
    // A logarithm needs more than 0: a microsecond is below the resolution of these clocks.
    let points = points.into_iter().map(|(x, y)| (x.max(1e-3), y)).collect();
    Some(Series { points, colour, mark: Mark::Line, opacity })
}

/// The range of a logarithmic axis for `series`; `None` without a value.
fn value_range<'a>(series: impl Iterator<Item = &'a Series>) -> Option<Range<f64>> {
    let values = series.flat_map(|s| &s.points).map(|p| p.0);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    (low <= high).then(|| low / 1.1..high * 1.1)
}

fn draw_distribution(quantity: Quantity, series: &[Series], range: Range<f64>) -> Result<String> {
    let (description, label) = quantity.names();
    let x = Axis { label: label.into(), range };
    let y = Axis { label: "share of all, %".into(), range: 0.0..100.0 };
    chart::logarithmic(description, &x, &y, series)
}

/// Each repeat's mean grace period, a row per entry: name, summary, variant. `None` without one.
pub fn spread_chart(entries: &[(String, &Summary, usize)]) -> Result<Option<String>> {
    let mut series = vec![];
    for (i, (_, summary, variant)) in entries.iter().enumerate() {
        let Some(row) = summary.variants[*variant].row("gp_mean") else { continue };
        for scenario in SCENARIOS {
            let repeats = row.cell(scenario).map(|c| c.repeats.as_slice()).unwrap_or_default();
            let y = (entries.len() - i) as f64;
            let points: Vec<Point> = repeats.iter().flatten().map(|&x| (x, y)).collect();
            if !points.is_empty() {
                series.push(Series {
                    points,
                    colour: colour(scenario),
                    mark: Mark::BigDots,
                    opacity: 0.6,
                });
            }
        }
    }
    let Some(high) = series.iter().flat_map(|s| &s.points).map(|p| p.0).reduce(f64::max) else {
        return Ok(None);
    };
    let x = Axis { label: "mean grace period of a repeat, ms".into(), range: 0.0..1.05 * high };
    let names: Vec<String> = entries.iter().map(|(name, ..)| name.clone()).collect();
    chart::rows("Mean grace period of each repeat", &x, &names, &series).map(Some)
}
