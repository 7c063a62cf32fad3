// SPDX-License-Identifier: MIT OR Apache-2.0
//! A result as one HTML page without a script.

use super::chart::{self, Panel};
use super::{CELLS, cells, conditions, heading, number, overall};
use crate::error::Result;
use crate::result::Outcome;
use crate::subject::Class;
use crate::summary::{Line, Summary};
use maud::{Markup, PreEscaped, html};
use reprieve_page::{Page, document};

const STYLE: &str = include_str!("style.css");

/// A page of one benchmark.
pub fn page(outcome: &Outcome) -> Result<String> {
    let details = details(outcome)?;
    let title = format!("reprieve bench {}", outcome.bench);
    Ok(page_of(
        &title,
        html! {
            h1 { code { (title) } ": " (outcome.title) }
            (details)
            (legend())
        },
    ))
}

/// A page of all benchmarks: the ratios in one chart and one table, then the benchmarks.
pub fn summary_page(summary: &Summary) -> Result<String> {
    let ratios = chart::ratios(&summary.lines)?;
    let mut sections = vec![];
    for outcome in &summary.benches {
        sections.push((outcome, details(outcome)?));
    }
    Ok(page_of(
        "reprieve bench all",
        html! {
            h1 { code { "reprieve bench all" } ": the runtime beside the best of its peers" }
            ul class="soft" { @for line in overall(summary) { li { (line) } } }
            @if let Some(ratios) = &ratios { (figure(ratios)) }
            (lines(summary))
            ul { @for note in &summary.notes { li { (note) } } }
            (legend())
            @for (outcome, details) in &sections {
                section id=(outcome.bench) {
                    h2 { code { "reprieve bench " (outcome.bench) } ": " (outcome.title) }
                    (details)
                }
            }
        },
    ))
}

fn page_of(title: &str, body: Markup) -> String {
    document(Page { title, style: STYLE, script: None, body })
}

fn legend() -> Markup {
    html! {
        p { "Rows in bold are Reprieve's. A figure is the median of the rounds; \u{d7} is its ratio to the best peer's; below it are the smallest and the largest round." }
    }
}

fn figure(panel: &Panel) -> Markup {
    html! {
        figure {
            figcaption { (panel.title) }
            (PreEscaped(&panel.svg))
            ul class="legend" {
                @for (colour, name) in &panel.series {
                    li { i class={ "c" (colour) } {} (name) }
                }
            }
        }
    }
}

/// The summary's table.
fn lines(summary: &Summary) -> Markup {
    let verdict = |line: &Line| match line.reached() {
        Some(true) => "reached",
        Some(false) => "missed",
        None => "open",
    };
    html! {
        div class="scroll" { table class="summary" {
            thead { tr { @for title in CELLS { th { (title) } } } }
            tbody {
                @for (i, line) in summary.lines.iter().enumerate() {
                    @if i == 0 || line.bench != summary.lines[i - 1].bench {
                        tr class="group" { th colspan=(CELLS.len()) { a href={ "#" (line.bench) } { (line.bench) } } }
                    }
                    tr class=(verdict(line)) {
                        @for (i, cell) in cells(line).into_iter().enumerate() {
                            @if i == 0 { th { (cell) } } @else { td { (cell) } }
                        }
                    }
                }
            }
        } }
    }
}

/// A benchmark's conditions, charts, table and notes.
fn details(outcome: &Outcome) -> Result<Markup> {
    let panels = chart::panels(outcome)?;
    let columns = outcome.columns.len() + 1;
    Ok(html! {
        p class="soft" { (conditions(&outcome.conditions)) }
        @for panel in &panels { (figure(panel)) }
        div class="scroll" { table {
            thead { tr {
                th {}
                @for c in &outcome.columns { th { (heading(&c.title, c.unit)) } }
            } }
            tbody {
                @for (i, row) in outcome.rows.iter().enumerate() {
                    @if i == 0 && !row.group.is_empty() || i > 0 && row.group != outcome.rows[i - 1].group {
                        tr class="group" { th colspan=(columns) { (row.group) } }
                    }
                    tr class=[(row.class == Class::Reprieve).then_some("ours")] {
                        th { (row.subject) }
                        @for figure in &row.figures {
                            td { @match figure {
                                Some(f) => {
                                    (number(f.value))
                                    @if let Some(ratio) = f.to_best_peer { span class="ratio" { " \u{d7}" (number(ratio)) } }
                                    span class="spread" { (number(f.min)) " .. " (number(f.max)) }
                                }
                                None => "-",
                            } }
                        }
                    }
                }
            }
        } }
        ul { @for note in &outcome.notes { li { (note) } } }
    })
}
