// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of all benchmarks in headless Chromium: nothing to complain about, and the chart has
//! every ratio.

use reprieve_bench::{Options, run_all, write_summary_html};
use reprieve_browser::{Seen, open};
use std::time::Duration;

#[test]
fn the_ratios_are_drawn() {
    let options = |_, length| Options {
        against: vec!["rwlock".into(), "haphazard".into()],
        length,
        rounds: 2,
        readers: vec![1],
        churn: false,
        lengths: vec![],
        hogs: vec![],
        cancel: Default::default(),
    };
    let (summary, result) = run_all(Duration::from_secs(1), &options, &|_, _| ());
    result.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("all.html");
    write_summary_html(&summary, &html).unwrap();
    let Seen { dom, console, requests } = open(&html, "");
    assert!(console.is_empty() && requests.is_empty(), "{console:?} {requests:?}");
    let after = |text: &str, mark: &str| text.split_once(mark).unwrap().1.to_owned();
    let chart =
        after(&dom, "<svg class=\"chart\" role=\"img\" aria-label=\"Ratio to the best peer");
    let chart = chart.split_once("</svg>").unwrap().0;
    let ratios = summary.lines.iter().filter(|l| l.peer.is_some());
    assert_eq!(chart.matches("<circle").count(), ratios.clone().count());
    for line in ratios {
        assert!(chart.contains(&line.measure), "{} is not in the chart", line.measure);
    }
    let table = after(&dom, "<table class=\"summary\">");
    let table = table.split_once("</table>").unwrap().0;
    let rows = |class: &str| table.matches(&format!("<tr class=\"{class}\">")).count();
    let reached = |verdict| summary.lines.iter().filter(|l| l.reached() == verdict).count();
    assert_eq!(
        [rows("reached"), rows("missed"), rows("open")],
        [reached(Some(true)), reached(Some(false)), reached(None)]
    );
    assert!(dom.matches("<svg").count() > summary.benches.len(), "charts of the benchmarks");
}

/// The check can fail: what the page's policy forbids is on the console.
#[test]
fn a_page_that_asks_for_something_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("all.html");
    let (summary, _) = run_all(Duration::ZERO, &|_, _| unreachable!(), &|_, _| ());
    write_summary_html(&summary, &html).unwrap();
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::write(&html, page.replace("</body>", "<script>alert(1)</script></body>")).unwrap();
    let console = open(&html, "").console;
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:?}");
}
