// SPDX-License-Identifier: MIT OR Apache-2.0
//! One page that needs nothing else: no script, no font, no link; its own policy forbids every request.

use super::{chart, conditions, heading, number};
use crate::error::Result;
use crate::result::Outcome;
use crate::subject::Class;
use maud::{DOCTYPE, PreEscaped, html};

const STYLE: &str = include_str!("style.css");
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

pub fn page(outcome: &Outcome) -> Result<String> {
    let panels = chart::panels(outcome)?;
    let columns = outcome.columns.len() + 1;
    Ok(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "reprieve bench " (outcome.bench) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { code { "reprieve bench " (outcome.bench) } ": " (outcome.title) }
                p class="soft" { (conditions(&outcome.conditions)) }
                @for panel in &panels {
                    figure {
                        figcaption { (panel.title) }
                        (PreEscaped(&panel.svg))
                        ul class="legend" {
                            @for (i, name) in panel.series.iter().enumerate() {
                                li { i class={ "c" (i % chart::COLOURS) } {} (name) }
                            }
                        }
                    }
                }
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
                p { "Rows in bold are Reprieve's. A figure is the median of the rounds; \u{d7} is its ratio to the best peer's; below it are the smallest and the largest round." }
                ul { @for note in &outcome.notes { li { (note) } } }
            }
        }
    }
    .into_string())
}
