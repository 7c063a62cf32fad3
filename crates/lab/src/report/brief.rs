// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run that compares policies, in a few lines: the same guest alone, then overcommitted under
//! each policy.

use super::format::{self, plain};
use super::summary::{Cell, Summary, VariantSummary};
use super::{policies, table};
use crate::plan::Scenario;
use crate::policy::Policy;

/// Most policies whose columns fit beside each other.
const MOST: usize = 4;

impl Summary {
    /// `None` for a run that compares no policies, or guests, too.
    pub fn to_brief(&self, width: usize) -> Option<String> {
        let guests = self.plan.guests();
        let stock = policies::references(&self.plan).first().copied().flatten()?;
        if guests.iter().any(|&guest| guest != guests[0]) || guests.len() > MOST {
            return None;
        }
        let mut columns = vec![(String::from("alone"), stock, Scenario::Baseline)];
        columns.extend(self.variants.iter().enumerate().map(|(i, v)| {
            let kind =
                if matches!(v.variant.policy, Policy::Guard(..)) { "guard" } else { "stock" };
            (format!("{kind}:\n{}", v.variant.policy), i, Scenario::Overcommit)
        }));
        let header = std::iter::once(String::new()).chain(columns.iter().map(|c| c.0.clone()));
        let row = |label: String, cell: &dyn Fn(&VariantSummary, Scenario) -> Option<String>| {
            let cells = columns.iter().map(|&(_, i, scenario)| cell(&self.variants[i], scenario));
            let cells: Vec<Option<String>> = cells.collect();
            let known = cells.iter().any(Option::is_some);
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| format::NONE.into()));
            known.then(|| std::iter::once(label).chain(cells).collect::<Vec<_>>())
        };
        let of = |v: &VariantSummary, key: &str, scenario| {
            v.row(key).and_then(|row| row.cell(scenario)).cloned()
        };
        let figure = |key: &'static str| {
            move |v: &VariantSummary, s| Some(format::cell(Some(&of(v, key, s)?)))
        };
        let cpus = |v: &VariantSummary, s| {
            let share = of(v, "host_cpu_subject", s)?;
            let value = share.value * f64::from(self.host.cpus) / 100.0;
            Some(format::cell(Some(&Cell { value, ..share })))
        };
        let died = self.variants.iter().any(|v| {
            let survived = |s| of(v, "survived", s).is_some_and(|cell| cell.value < 100.0);
            survived(Scenario::Baseline) || survived(Scenario::Overcommit)
        });
        let unit = self.metric("throughput").map_or("1/s", |m| m.unit.as_str());
        let rows = [
            row("Grace periods, mean, ms".into(), &figure("gp_mean")),
            row("... 90 % are shorter than".into(), &figure("gp_p90")),
            row("... longest".into(), &figure("gp_max")),
            row("Peak memory, MiB".into(), &figure("memory_peak")),
            row(format!("Throughput, {}", plain(unit)), &figure("throughput")),
            row("CPUs used".into(), &cpus),
            row("Phases survived, %".into(), &figure("survived")).filter(|_| died),
        ];
        Some(table::brief(self, header, rows.into_iter().flatten(), width))
    }
}
