// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables of the page. Every figure carries its exact value in `data-value`, under the key of its
//! row, for programs that read the page.

use super::Item;
use crate::plan::Scenario;
use crate::report::figures::SCENARIOS;
use crate::report::format::{self, plain};
use crate::report::summary::{Cell, Row, scenario_name};
use crate::report::table;
use maud::{Markup, html};

/// All rows of one variant.
pub fn full(item: &Item) -> Markup {
    let summary = item.summary;
    let variant = &summary.variants[item.variant];
    let paper = variant.rows.iter().any(|r| r.paper.is_some());
    let mut group = "";
    let mut starts = vec![];
    for row in &variant.rows {
        let this = summary.metric(&row.key).map_or("", |m| m.group.as_str());
        starts.push((this != group).then_some(this));
        group = this;
    }
    html! {
        div class="scroll" {
            table class="full" data-item=(item.letter) {
                thead { tr {
                    th {} th { "baseline" } th { "overcommit" } th { "ratio" }
                    @if paper {
                        th class="paper first-of-group" { "paper: baseline" } th class="paper" { "overcommit" } th class="paper" { "ratio" }
                    }
                } }
                tbody {
                    @for (row, start) in variant.rows.iter().zip(&starts) {
                        @if let Some(group) = start {
                            tr class="group" { th colspan=(if paper { 7 } else { 4 }) { (plain(group)) } }
                        }
                        tr data-key=(plain(&row.key)) {
                            th scope="row" { (table::label(summary, row)) }
                            @for scenario in SCENARIOS { (cell(row, scenario)) }
                            (ratio(row))
                            @if paper { (paper_cells(row)) }
                        }
                    }
                }
            }
        }
    }
}

fn cell(row: &Row, scenario: Scenario) -> Markup {
    let value = row.cell(scenario);
    html! {
        td data-scenario=(scenario_name(scenario)) data-value=[value.map(|c| c.value)] {
            (format::cell(value))
            @if let Some(spread) = value.and_then(spread) { span class="spread" { (spread) } }
        }
    }
}

/// `6.75-7.07, cv 2.1 %`; nothing when all repeats are equal.
fn spread(cell: &Cell) -> Option<String> {
    let s = cell.spread.filter(|s| s.min != s.max)?;
    let cv = s.cv.map(|cv| format!(", cv {:.1} %", 100.0 * cv)).unwrap_or_default();
    Some(format!("{} to {}{cv}", format::number(s.min), format::number(s.max)))
}

fn ratio(row: &Row) -> Markup {
    html! { td class="ratio" data-scenario="ratio" data-value=[row.ratio] { (format::bounded_ratio(row.bounded_ratio())) } }
}

fn paper_cells(row: &Row) -> Markup {
    let paper = row.paper.as_ref();
    let show = |v: Option<f64>| v.map(format::number).unwrap_or_default();
    html! {
        td class="paper first-of-group" { (show(paper.and_then(|p| p.baseline))) }
        td class="paper" { (show(paper.and_then(|p| p.overcommit))) }
        td class="paper" { (paper.and_then(|p| p.ratio).map(|r| format::ratio(Some(r))).unwrap_or_default()) }
    }
}

/// A column of a comparison: key, heading, whether the ratio is worth a column.
type Column = (&'static str, &'static str, bool);

const GRACE_PERIODS: &[Column] = &[
    ("gp_mean", "GP mean", true),
    ("gp_p50", "p50", false),
    ("gp_p90", "p90", false),
    ("gp_max", "max", false),
    ("throughput", "throughput", true),
];

const COSTS: &[Column] = &[
    ("memory_growth", "memory growth", true),
    ("memory_spike", "largest spike", true),
    ("gp_cpu", "CPU per GP", true),
    ("vcpu_preemptions", "preemptions", false),
    ("callback_latency_p99", "callback p99", true),
];

/// A row per variant with what matters most.
pub fn side_by_side(items: &[Item]) -> Markup {
    html! { (comparison(items, GRACE_PERIODS)) (comparison(items, COSTS)) }
}

fn comparison(items: &[Item], columns: &[Column]) -> Markup {
    let rows: Vec<_> = items.iter().map(|i| (i, &i.summary.variants[i.variant])).collect();
    let measured = |r: &Row| r.baseline.is_some() || r.overcommit.is_some();
    let shown: Vec<_> = columns
        .iter()
        .filter(|(key, ..)| rows.iter().any(|(_, v)| v.row(key).is_some_and(measured)))
        .collect();
    let unit = |key: &str| {
        let metric = items.first().and_then(|i| i.summary.metric(key));
        metric.map(|m| plain(&m.unit)).unwrap_or_default()
    };
    html! {
        div class="scroll" {
            table class="side-by-side wide-label" {
                thead {
                    tr {
                        th {}
                        @for (key, label, with_ratio) in &shown {
                            th class="first-of-group" colspan=(if *with_ratio { 3 } else { 2 }) { (label) ", " (unit(key)) }
                        }
                    }
                    tr {
                        th {}
                        @for (_, _, with_ratio) in &shown {
                            th class="first-of-group" { "alone" } th { "over" } @if *with_ratio { th { "ratio" } }
                        }
                    }
                }
                tbody {
                    @for (item, variant) in &rows {
                        tr data-item=(item.letter) {
                            th scope="row" { strong { (item.letter) } " " (item.title) }
                            @for (key, _, with_ratio) in &shown {
                                @let row = variant.row(key);
                                @let value = |s| format::cell(row.and_then(|r| r.cell(s)));
                                td class="first-of-group" { (value(Scenario::Baseline)) }
                                td { (value(Scenario::Overcommit)) }
                                @if *with_ratio { td class="ratio" { (format::bounded_ratio(row.and_then(Row::bounded_ratio))) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The mean grace period of each repeat.
pub fn repeats(items: &[Item]) -> Markup {
    html! {
        div class="scroll" {
            table class="repeats wide-label" {
                thead { tr { th { "GP mean, ms" } th {} th { "each repeat" } th { "cv" } } }
                tbody {
                    @for item in items {
                        @for (i, scenario) in SCENARIOS.into_iter().enumerate() {
                            @let cell = item.summary.variants[item.variant].row("gp_mean").and_then(|r| r.cell(scenario));
                            tr {
                                th scope="row" { @if i == 0 { strong { (item.letter) } " " (item.title) } }
                                td { (scenario_name(scenario)) }
                                td {
                                    @let repeats = cell.map(|c| c.repeats.as_slice()).unwrap_or_default();
                                    (repeats.iter().map(|r| format::optional(*r)).collect::<Vec<_>>().join("  "))
                                }
                                td {
                                    @match cell.and_then(|c| c.spread).and_then(|s| s.cv) {
                                        Some(cv) => { (format!("{:.1} %", 100.0 * cv)) }
                                        None => { (format::NONE) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
