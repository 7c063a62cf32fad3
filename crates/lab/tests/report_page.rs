// SPDX-License-Identifier: MIT OR Apache-2.0
//! `report.html`: it shows the figures of `summary.json`, has its charts, and names no other file.

mod report_common;

use report_common::{Scratch, data};
use reprieve_lab::plan::Scenario;
use reprieve_lab::report::{self, Summary};
use std::path::{Path, PathBuf};

/// The page in `dir`, which needs nothing and runs nothing.
fn page(dir: &Path) -> String {
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains("content=\"default-src 'none'; "), "{}", before(&page, "<body>"));
    for element in ["<script", "<img", "<link", "<iframe", "<object", "<a "] {
        assert!(!page.contains(element), "{element} in {}", dir.display());
    }
    page
}

/// Text and exact value of a cell of the full table.
fn cell(page: &str, item: &str, key: &str, column: &str) -> (String, Option<f64>) {
    let table = after(page, &format!("<table class=\"full\" data-item=\"{item}\">"));
    let row = before(after(table, &format!("<tr data-key=\"{key}\">")), "</tr>");
    let td = after(row, &format!("data-scenario=\"{column}\""));
    let (attributes, rest) = td.split_once('>').unwrap();
    let value = attributes
        .trim()
        .strip_prefix("data-value=\"")
        .map(|v| v.trim_end_matches('"').parse().unwrap());
    (before(rest, "<").to_owned(), value)
}

#[track_caller]
fn after<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).unwrap_or_else(|| panic!("no {mark}")).1
}

fn before<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split(mark).next().unwrap_or_default()
}

/// Every figure of the summary is on the page: exactly in its cell, and rounded where one sees it.
fn shows(page: &str, summary: &Summary) {
    let mut figures = 0;
    for (i, variant) in summary.variants.iter().enumerate() {
        let item = if summary.variants.len() > 1 {
            char::from(b'A' + i as u8).to_string()
        } else {
            String::new()
        };
        for row in &variant.rows {
            let of = |s| row.cell(s).map(|c| c.value);
            for (column, expected) in [
                ("baseline", of(Scenario::Baseline)),
                ("overcommit", of(Scenario::Overcommit)),
                ("ratio", row.ratio),
            ] {
                let (text, value) = cell(page, &item, &row.key, column);
                let what = format!("{item} {} {column}: {text:?} {value:?} {expected:?}", row.key);
                let Some(expected) = expected else {
                    assert_eq!((text.as_str(), value), ("-", None), "{what}");
                    continue;
                };
                let near = |v: f64, tolerance: f64| (v - expected).abs() <= tolerance;
                assert!(value.is_some_and(|v| near(v, 1e-9 * expected.abs())), "{what}");
                let seen: f64 = text.replace(',', "").parse().unwrap_or_else(|_| panic!("{what}"));
                // Three digits, or two decimals of a ratio.
                assert!(near(seen, (0.0051 * expected.abs()).max(0.0051)), "{what}");
                figures += 1;
            }
        }
    }
    assert!(figures > 20, "only {figures} figures");
}

/// The charts that must be there, each with something drawn in it.
fn charts(page: &str, expected: &[&str]) {
    let mut drawn: Vec<&str> = vec![];
    for part in page.split("<svg class=\"chart\"").skip(1) {
        let svg = before(part, "</svg>");
        let name = before(after(svg, "aria-label=\""), "\"");
        let points: usize = svg
            .split("points=\"")
            .skip(1)
            .map(|p| before(p, "\"").split_whitespace().count())
            .sum();
        let dots = svg.matches("<circle").count();
        let marks = points + dots;
        assert!(
            marks > if name.starts_with("Mean") { 2 } else { 40 },
            "{name}: only {marks} points"
        );
        assert!(svg.matches("<text").count() > 4, "{name}: no labels");
        drawn.push(name);
    }
    for name in expected {
        assert!(drawn.contains(name), "no chart {name:?} among {drawn:?}");
    }
}

/// The charts of every run with repeats.
const CHARTS: [&str; 6] = [
    "Memory against time, baseline",
    "Memory against time, overcommit",
    "Grace-period duration against time, baseline",
    "Grace-period duration against time, overcommit",
    "Distribution of grace-period durations",
    "Mean grace period of each repeat",
];

/// A stored run, copied to where a report may be written.
fn stored(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.raw(name, &std::fs::read(data(name).join("raw.jsonl")).unwrap())
}

#[test]
fn the_report_shows_the_summary_and_needs_no_network() {
    let scratch = Scratch::new("page");
    for name in ["churn", "generated"] {
        let dir = stored(&scratch, name);
        report::write(&dir).unwrap();
        let json = std::fs::read(dir.join("summary.json")).unwrap();
        let summary: Summary = serde_json::from_slice(&json).unwrap();
        let page = page(&dir);
        shows(&page, &summary);
        charts(&page, &CHARTS);
        if summary.plan.measure.callback_probe_hz > 0 {
            charts(&page, &["Distribution of callback latencies"]);
        }
        let command = format!("<pre>{}</pre>", summary.plan.command);
        assert!(page.contains(&command), "{name}: the command to repeat it");
    }
}

#[test]
fn a_guest_cannot_reach_into_the_page() {
    let scratch = Scratch::new("reach");
    let dir = stored(&scratch, "churn");
    let raw = std::fs::read_to_string(dir.join("raw.jsonl")).unwrap();
    let evil = "<script>document.title='owned'</script><img src='http://192.0.2.1/x'>";
    let notice = format!("{{\"record\":\"notice\",\"text\":\"{evil}\"}}\n");
    let (first, rest) = raw.split_once('\n').unwrap();
    std::fs::write(dir.join("raw.jsonl"), format!("{first}\n{notice}{rest}")).unwrap();
    report::write(&dir).unwrap();
    let page = page(&dir);
    assert!(page.contains("&lt;script&gt;document.title='owned'"), "shown as text");
}
