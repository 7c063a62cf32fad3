// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of metrics on pages, in documents and dashboards.

use std::collections::BTreeSet;

/// Names of metrics in `text`, as Prometheus stores them.
pub fn names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let all = text.split(|c| !word(c)).filter(|w| w.starts_with("reprieve_"));
    all.map(|w| {
        let end = ["_bucket", "_count", "_sum"].iter().find_map(|end| w.strip_suffix(end));
        end.unwrap_or(w).to_string()
    })
    .collect()
}

/// Metrics that a page serves.
pub fn served(page: &str) -> BTreeSet<String> {
    let series = page.lines().filter(|line| !line.starts_with('#'));
    series.flat_map(|line| names(line.split(['{', ' ']).next().unwrap())).collect()
}

/// Metrics in the table below `## Metrics`.
pub fn documented(text: &str) -> BTreeSet<String> {
    let (_, table) = text.split_once("## Metrics").unwrap();
    let table: String = table
        .lines()
        .filter(|line| line.starts_with("| `reprieve_"))
        .map(|line| line.split('|').nth(1).unwrap())
        .collect();
    names(&table)
}

/// Metrics that the panels of a dashboard ask for.
pub fn asked(dashboard: &str) -> BTreeSet<String> {
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut asked = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            asked.extend(names(expression));
            // Two hosts may have VMs, processes or cgroups of the same name.
            for labels in expression.split("by (").skip(1) {
                let labels: Vec<_> = labels.split(')').next().unwrap().split(", ").collect();
                let named = ["vm", "process", "cgroup"].iter().any(|label| labels.contains(label));
                assert!(!named || labels.contains(&"instance"), "{expression}");
            }
        }
    }
    asked
}
