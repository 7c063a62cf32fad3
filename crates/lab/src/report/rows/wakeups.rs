// SPDX-License-Identifier: MIT OR Apache-2.0
//! How late a thread of the host wakes that belongs to no VM.

use crate::plan::Scenario;
use crate::policy::Policy;
use crate::report::VariantSummary;
use crate::report::metric::{Better, Measured, Metric, row};
use crate::report::stats::Distribution;

const GROUP: &str = "A thread of the host";

/// The most that the latency's 99th percentile may be, over that under the stock scheduler.
const TARGET: f64 = 1.1;

/// A row per percentile, over the sleeps of all phases.
pub fn rows() -> Vec<Metric> {
    let late = |m: &Measured| {
        let all = m.phases.iter().flat_map(|phase| &phase.wakeups_ns);
        Distribution::new(all.map(|&ns| ns as f64 / 1e3))
    };
    let mut rows = vec![row(GROUP, "wakeups", "Wake-ups", "", Better::Neither, move |m| {
        Some(late(m)?.count() as f64)
    })];
    for (p, name) in [(50.0, "p50"), (99.0, "p99"), (100.0, "max")] {
        let (key, label) = (format!("wakeup_{name}"), format!("Wake-up latency {name}"));
        rows.push(row(GROUP, &key, &label, "us", Better::Lower, move |m| {
            Some(late(m)?.percentile(p))
        }));
    }
    rows
}

/// A line for each policy that is compared with the stock scheduler.
pub fn verdicts(variants: &[VariantSummary]) -> Vec<String> {
    let verdict = |variant: &VariantSummary| {
        let row = variant.row("wakeup_p99")?;
        row.cell(Scenario::Overcommit)?;
        let ratio = row.to_eevdf.as_ref()?.overcommit?.value;
        let word = if ratio <= TARGET { "within" } else { "beyond" };
        Some(format!(
            "{}: the host's thread wakes {ratio:.2} times as late as under eevdf (p99, overcommitted), {word} the target of {TARGET}",
            variant.variant.label
        ))
    };
    let others = variants.iter().filter(|v| v.variant.policy != Policy::Eevdf);
    others.filter_map(verdict).collect()
}
