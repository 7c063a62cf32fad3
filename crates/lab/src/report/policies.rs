// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each policy against the stock scheduler with the same guest, and against that guest alone on its
//! host.
//!
//! A ratio is of the figures over all repeats; its spread is of the ratios of single repeats, whose
//! phases ran one after the other. A policy that slows down a guest that is alone must not look
//! good for it: `to alone` divides by the guest alone under the *stock* scheduler.

use super::stats::{Bound, Spread, spread};
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
        assert_eq!(super::ratio(Some(&over), Some(&cell(0.0, &[]))), None);
        assert_eq!(super::ratio(None, Some(&under)), None);
    }
}
