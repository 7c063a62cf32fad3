// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies side by side: each against the stock scheduler with the same guest, and against that
//! guest alone on its host.
//!
//! A ratio is of the figures over all repeats; its spread is of the ratios of single repeats, whose
//! phases ran one after the other. A policy that slows down a guest that is alone must not look
//! good for it: `to alone` divides by the guest alone under the *stock* scheduler.

use super::format;
use super::stats::{self, Bound, Bounded, Spread, spread};
use super::summary::{Cell, VariantSummary};
use crate::plan::Plan;
use crate::policy::Policy;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

/// A figure under a policy against the same figure under the stock scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToEevdf {
    /// Alone, over alone under the stock scheduler.
    pub baseline: Option<Ratio>,
    /// Overcommitted, over overcommitted under the stock scheduler.
    pub overcommit: Option<Ratio>,
    /// Overcommitted, over alone under the stock scheduler.
    pub overcommit_to_alone: Option<Ratio>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub value: f64,
    /// Which bound it is, where one of the figures is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// Of the repeats' ratios; `None` for fewer than two.
    pub spread: Option<Spread>,
}

/// For each variant, the one with the same guest under the stock scheduler, where several policies
/// are compared.
pub fn references(plan: &Plan) -> Vec<Option<usize>> {
    let guests = plan.guests();
    let reference = |guest: usize| {
        let stock = |&i: &usize| plan.variants[i].policy == Policy::Eevdf;
        let same = (0..guests.len()).filter(|&i| guests[i] == guest);
        let others = !same.clone().all(|i| stock(&i));
        same.clone().find(stock).filter(|_| others)
    };
    guests.iter().map(|&guest| reference(guest)).collect()
}

/// Fills in the ratios of all rows.
pub fn compare(plan: &Plan, variants: &mut [VariantSummary]) {
    for (index, reference) in references(plan).into_iter().enumerate() {
        let Some(reference) = reference else { continue };
        for row in 0..variants[index].rows.len() {
            let of = &variants[reference].rows[row];
            let (alone, over) = (of.baseline.clone(), of.overcommit.clone());
            let row = &mut variants[index].rows[row];
            let to = ToEevdf {
                baseline: ratio(row.baseline.as_ref(), alone.as_ref()),
                overcommit: ratio(row.overcommit.as_ref(), over.as_ref()),
                overcommit_to_alone: ratio(row.overcommit.as_ref(), alone.as_ref()),
            };
            row.to_eevdf = Some(to);
        }
    }
}

fn ratio(over: Option<&Cell>, under: Option<&Cell>) -> Option<Ratio> {
    let (over, under) = (over?, under?);
    let (value, bound) = stats::ratio(over.bounded(), under.bounded())?;
    let each = over.repeats.iter().zip(&under.repeats);
    let each = each.filter_map(|(over, under)| Some((*over)? / (*under)?));
    Some(Ratio { value, bound, spread: spread(each) })
}

impl Ratio {
    fn bounded(self) -> Bounded {
        (self.value, self.bound)
    }
}

/// A column of the table: its heading in two parts, the row of the summary, and which ratio.
type Column = (&'static str, &'static str, &'static str, fn(&ToEevdf) -> Option<Ratio>);

const COLUMNS: [Column; 8] = [
    ("GP mean", "to alone", "gp_mean", |to| to.overcommit_to_alone),
    ("", "to eevdf", "gp_mean", |to| to.overcommit),
    ("p50", "to eevdf", "gp_p50", |to| to.overcommit),
    ("max", "to alone", "gp_max", |to| to.overcommit_to_alone),
    ("", "to eevdf", "gp_max", |to| to.overcommit),
    ("thr.put", "to eevdf", "throughput", |to| to.overcommit),
    ("alone: GP", "to eevdf", "gp_mean", |to| to.baseline),
    ("thr.put", "to eevdf", "throughput", |to| to.baseline),
];

/// The title of the table.
pub const TITLE: &str =
    "Policies against eevdf: overcommitted, over alone under eevdf and over overcommitted under it";

/// Columns that the table takes besides its labels.
pub const WIDTH: usize = 84;

/// The headings of the columns, in two lines.
pub fn headings() -> Vec<String> {
    COLUMNS.iter().map(|(group, part, ..)| format!("{group}\n{part}")).collect()
}

/// The cells of a variant, with the spread of the repeats in a second line; `None` if it is not
/// compared with anything.
pub fn cells(variant: &VariantSummary) -> Option<Vec<String>> {
    let compared = variant.rows.iter().any(|row| row.to_eevdf.is_some());
    compared.then(|| {
        let show = |ratio: Option<Ratio>| {
            let first = format::bounded_ratio(ratio.map(Ratio::bounded));
            let spread = ratio.and_then(range).map(|range| format!("\n{range}"));
            first + &spread.unwrap_or_default()
        };
        COLUMNS.iter().map(|(_, _, key, of)| show(pick(variant, key, *of))).collect()
    })
}

fn pick(variant: &VariantSummary, key: &str, of: fn(&ToEevdf) -> Option<Ratio>) -> Option<Ratio> {
    variant.row(key)?.to_eevdf.as_ref().and_then(of)
}

/// `0.63-0.70`; nothing where all repeats are equal.
fn range(ratio: Ratio) -> Option<String> {
    let spread = ratio.spread.filter(|spread| spread.min != spread.max)?;
    Some(format!("{}-{}", format::ratio(Some(spread.min)), format::ratio(Some(spread.max))))
}

/// The same table for the page: a row per variant, with its letter and its title.
pub fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a str, &'a VariantSummary)>) -> Markup {
    let rows: Vec<_> =
        rows.filter(|(.., v)| v.rows.iter().any(|row| row.to_eevdf.is_some())).collect();
    html! {
        @if !rows.is_empty() {
            h3 { "Policies against eevdf" }
            p class="soft" {
                "Overcommitted figures over those of the same guest under the stock scheduler (eevdf), and over that guest alone under it. "
                "Below: the least and the greatest ratio of a repeat."
            }
            div class="scroll" {
                table class="policies wide-label" {
                    thead { tr {
                        th {}
                        @for (group, part, ..) in COLUMNS { th { (group) br; (part) } }
                    } }
                    tbody {
                        @for (letter, title, variant) in &rows {
                            tr data-item=(letter) {
                                th scope="row" { strong { (letter) } " " (title) }
                                @for (_, _, key, of) in COLUMNS {
                                    @let ratio = pick(variant, key, of);
                                    td class="ratio" data-key=(key) data-value=[ratio.map(|r| r.value)] {
                                        (format::bounded_ratio(ratio.map(Ratio::bounded)))
                                        @if let Some(range) = ratio.and_then(range) { span class="spread" { (range) } }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(value: f64, repeats: &[Option<f64>]) -> Cell {
        Cell { value, bound: None, repeats: repeats.to_vec(), spread: None }
    }

    #[test]
    fn the_spread_is_of_ratios_within_a_repeat() {
        // Twice as long in each repeat, although the repeats lie far apart.
        let over = cell(9.0, &[Some(4.0), None, Some(20.0)]);
        let under = cell(6.0, &[Some(2.0), Some(7.0), Some(10.0)]);
        let ratio = ratio(Some(&over), Some(&under)).unwrap();
        assert_eq!(ratio.value, 1.5);
        assert_eq!(ratio.spread.map(|s| (s.min, s.max)), Some((2.0, 2.0)));
        assert_eq!(range(ratio), None);
        assert_eq!(super::ratio(Some(&over), Some(&cell(0.0, &[]))), None);
        assert_eq!(super::ratio(None, Some(&under)), None);
    }
}
