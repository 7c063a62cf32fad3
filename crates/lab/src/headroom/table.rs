// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a search as a table: a row per condition, with all boots.

use super::{Boot, Condition, Headroom};
use crate::plan::Scenario;
use crate::report::stats::Bound;
use comfy_table::{CellAlignment, Table, presets};

impl Headroom {
    /// The table for a terminal; ends with a line feed.
    pub fn to_text(&self) -> String {
        let Headroom { least_mib, most_mib, step_mib, repeat, .. } = self;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["", "needs, MiB", "to alone", "boots, in order (! out of memory)"]);
        for condition in &self.conditions {
            let needs = match (condition.survives_mib, condition.boots.last()) {
                (Some(mib), _) if mib == *least_mib => format!("at most {mib}"),
                (Some(mib), _) => mib.to_string(),
                // Without a result although it was tried: not finished, or dead in the largest.
                (None, Some(Boot { survived: false, memory_mib, .. }))
                    if memory_mib == most_mib =>
                {
                    format!("over {most_mib}")
                }
                (None, _) => "-".into(),
            };
            let mark = Bound::mark(condition.to_alone_bound);
            let ratio = condition.to_alone.map_or("-".into(), |ratio| format!("{mark}{ratio:.2}"));
            table.add_row([name(condition), needs, ratio, boots(&condition.boots)]);
        }
        for column in [1, 2] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let host = self.host.as_ref().map_or(String::new(), |host| {
            format!(
                "{} host of {} CPUs, Linux {}, time {}; ",
                host.mode, host.cpus, host.kernel, host.dilation
            )
        });
        let mark = if self.complete { "" } else { " (INCOMPLETE)" };
        format!(
            "{}{mark}: least memory in which the guest survives {repeat} x {} s\n{host}guest {}; sizes from {least_mib} to {most_mib} MiB in steps of {step_mib}\n\n{table}\n",
            self.experiment,
            self.phase_ms as f64 / 1000.0,
            self.guest_kernel,
        )
    }
}

fn name(condition: &Condition) -> String {
    match condition.scenario {
        Scenario::Baseline => format!("alone, {}", condition.policy),
        Scenario::Overcommit => format!("overcommitted, {}", condition.policy),
    }
}

fn boots(boots: &[Boot]) -> String {
    let shown = boots.iter().map(|boot| {
        let mark = if boot.survived { "" } else { "!" };
        format!("{}{mark}", boot.memory_mib)
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headroom::HEADROOM_SCHEMA;
    use crate::policy::Policy;

    #[test]
    fn what_was_not_found_is_not_a_figure() {
        let boot = |memory_mib, survived| Boot {
            memory_mib,
            survived,
            died_after_s: (!survived).then_some(2.5),
            why: None,
        };
        let condition = |scenario, survives_mib, to_alone, boots| Condition {
            scenario,
            policy: Policy::Eevdf,
            survives_mib,
            to_alone,
            to_alone_bound: (survives_mib == Some(160)).then_some(Bound::AtMost),
            boots,
        };
        let alone = vec![boot(512, true), boot(320, true), boot(224, false), boot(288, true)];
        let found = Headroom {
            schema: HEADROOM_SCHEMA,
            experiment: "asym".into(),
            command: "reprieve lab headroom".into(),
            host: None,
            guest_kernel: "deb:6.12".into(),
            phase_ms: 30_000,
            repeat: 1,
            least_mib: 160,
            most_mib: 512,
            step_mib: 32,
            complete: false,
            conditions: vec![
                condition(Scenario::Baseline, Some(288), Some(1.0), alone),
                condition(Scenario::Overcommit, None, None, vec![boot(512, false)]),
                condition(Scenario::Overcommit, None, None, vec![boot(512, true)]),
                condition(Scenario::Overcommit, Some(160), Some(0.56), vec![boot(160, true)]),
                condition(Scenario::Overcommit, None, None, vec![]),
            ],
        };
        let text = found.to_text();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        for row in [
            "alone, eevdf 288 1.00 512 320 224! 288",
            "overcommitted, eevdf over 512 - 512!",
            "overcommitted, eevdf - - 512",
            "overcommitted, eevdf at most 160 <= 0.56 160",
            "overcommitted, eevdf - -",
        ] {
            let words: Vec<&str> = row.split_whitespace().collect();
            assert!(lines.contains(&words), "{row}\n{text}");
        }
        assert!(text.contains("INCOMPLETE") && text.contains("steps of 32"), "{text}");
    }
}
