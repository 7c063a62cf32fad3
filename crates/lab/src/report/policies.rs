// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies side by side: each against the stock scheduler with the same guest, and against that
//! guest alone on its host.
//!
//! A ratio is of the figures over all repeats; its spread is of the ratios of single repeats, whose
//! phases ran one after the other. A policy that slows down a guest that is alone must not look
//! good for it: `to alone` divides by the guest alone under the *stock* scheduler.

use super::format;
use super::stats::{Bound, Bounded, Spread, spread};
use super::summary::{Cell, VariantSummary};
use crate::plan::Plan;
use crate::policy::Policy;
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
    /// The kind of bound, where one of the figures is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    /// The spread of the repeats' ratios; `None` for fewer than two.
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
    let (value, bound) = over.over(under)?;
    let each = over.repeats.iter().zip(&under.repeats);
    let each = each.filter_map(|(over, under)| Some((*over)? / (*under)?));
    Some(Ratio { value, bound, spread: spread(each) })
}

impl Ratio {
    fn bounded(self) -> Bounded {
        (self.value, self.bound)
    }
}

/// A table with a row per variant.
pub struct Comparison {
    pub title: &'static str,
    columns: &'static [Column],
}

/// A column: its heading in two parts, the row of the summary, which ratio, and how it is shown.
type Column = (&'static str, &'static str, &'static str, fn(&ToEevdf) -> Option<Ratio>, Form);

#[derive(Clone, Copy)]
enum Form {
    Ratio,
    /// The distance of the ratio to 1, in %.
    Avoided,
}

use Form::Avoided;

pub const TABLES: [Comparison; 2] = [
    Comparison {
        title: "Policies against eevdf: overcommitted, over alone under eevdf and over overcommitted under it",
        columns: &[
            ("GP mean", "to alone", "gp_mean", |to| to.overcommit_to_alone, Form::Ratio),
            ("", "to eevdf", "gp_mean", |to| to.overcommit, Form::Ratio),
            ("p50", "to eevdf", "gp_p50", |to| to.overcommit, Form::Ratio),
            ("max", "to alone", "gp_max", |to| to.overcommit_to_alone, Form::Ratio),
            ("", "to eevdf", "gp_max", |to| to.overcommit, Form::Ratio),
            ("thr.put", "to eevdf", "throughput", |to| to.overcommit, Form::Ratio),
            ("alone: GP", "to eevdf", "gp_mean", |to| to.baseline, Form::Ratio),
            ("thr.put", "to eevdf", "throughput", |to| to.baseline, Form::Ratio),
        ],
    },
    Comparison {
        title: "The same of memory, CPU time and the work of a CPU second; critical-section preemptions",
        columns: &[
            ("peak mem", "to alone", "memory_peak", |to| to.overcommit_to_alone, Form::Ratio),
            ("mean mem", "to alone", "memory_mean", |to| to.overcommit_to_alone, Form::Ratio),
            ("CPU", "to eevdf", "host_cpu_subject", |to| to.overcommit, Form::Ratio),
            ("work/CPU s", "to alone", WORK, |to| to.overcommit_to_alone, Form::Ratio),
            ("", "to eevdf", WORK, |to| to.overcommit, Form::Ratio),
            ("critical", "avoided, %", "critical_preemptions", |to| to.overcommit, Avoided),
        ],
    },
];

const WORK: &str = "work_per_cpu_second";

/// Columns that the wider of the tables takes besides its labels.
pub const WIDTH: usize = 84;

/// Whether the variant is compared with anything.
pub fn compared(variant: &VariantSummary) -> bool {
    variant.rows.iter().any(|row| row.to_eevdf.is_some())
}

impl Comparison {
    /// The headings of the columns, in two lines.
    pub fn headings(&self) -> Vec<String> {
        self.columns.iter().map(|(group, part, ..)| format!("{group}\n{part}")).collect()
    }

    /// The cells of a variant, with the spread of the repeats in a second line; `None` if there is
    /// nothing to compare.
    pub fn cells(&self, variant: &VariantSummary) -> Option<Vec<String>> {
        let ratios: Vec<_> = self.columns.iter().map(|column| pick(variant, column)).collect();
        let cell = |(ratio, column): (&Option<Ratio>, &Column)| {
            let Some(ratio) = *ratio else { return format::NONE.into() };
            let range = range(ratio, column.4).map(|range| format!("\n{range}"));
            text(ratio, column.4) + &range.unwrap_or_default()
        };
        let cells = || ratios.iter().zip(self.columns).map(cell).collect();
        ratios.iter().any(Option::is_some).then(cells)
    }
}

fn pick(variant: &VariantSummary, (_, _, key, of, _): &Column) -> Option<Ratio> {
    variant.row(key)?.to_eevdf.as_ref().and_then(of)
}

fn text(ratio: Ratio, form: Form) -> String {
    match form {
        Form::Ratio => format::bounded_ratio(Some(ratio.bounded())),
        Avoided => format::share(missing(ratio.value)),
    }
}

fn missing(ratio: f64) -> f64 {
    100.0 * (1.0 - ratio)
}

/// `0.63-0.70`; nothing where all repeats are equal.
fn range(ratio: Ratio, form: Form) -> Option<String> {
    let spread = ratio.spread.filter(|spread| spread.min != spread.max)?;
    let (min, max) = (spread.min, spread.max);
    Some(match form {
        Form::Ratio => format!("{}-{}", format::ratio(Some(min)), format::ratio(Some(max))),
        // May be negative.
        Avoided => format!("{}..{}", format::share(missing(max)), format::share(missing(min))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(value: f64, repeats: &[Option<f64>]) -> Cell {
        Cell { value, bound: None, repeats: repeats.to_vec(), spread: None, disturbed: false }
    }

    #[test]
    fn the_spread_is_of_ratios_within_a_repeat() {
        // Twice as long in each repeat, although the repeats lie far apart.
        let over = cell(9.0, &[Some(4.0), None, Some(20.0)]);
        let under = cell(6.0, &[Some(2.0), Some(7.0), Some(10.0)]);
        let ratio = ratio(Some(&over), Some(&under)).unwrap();
        assert_eq!(ratio.value, 1.5);
        assert_eq!(ratio.spread.map(|s| (s.min, s.max)), Some((2.0, 2.0)));
        assert_eq!(range(ratio, Form::Ratio), None);
        assert_eq!(super::ratio(Some(&over), Some(&cell(0.0, &[]))), None);
        assert_eq!(super::ratio(None, Some(&under)), None);
    }

    #[test]
    fn avoided_is_what_a_ratio_lacks() {
        let (over, under) = (cell(1.0, &[Some(2.0), Some(0.0)]), cell(50.0, &[Some(40.0); 2]));
        let ratio = ratio(Some(&over), Some(&under)).unwrap();
        assert_eq!(text(ratio, Form::Avoided), "98.0");
        assert_eq!(range(ratio, Form::Avoided).as_deref(), Some("95.0..100.0"));
        let more = super::ratio(Some(&under), Some(&over)).unwrap();
        assert_eq!(text(more, Form::Avoided), "-4900.0");
    }
}
