// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a recording in headless Chromium: its script runs under its own content security
//! policy, draws, and follows links to a grace period.
//!
//! A page whose script was changed after its hash was taken checks that the checks can fail.

use reprieve_browser::{Seen, open};
use reprieve_watch::model::{Class, Event, Location};
use reprieve_watch::show::page;
use reprieve_watch::show::recording::Writer;
use std::path::Path;

const MS: u64 = 1_000_000;

fn record(path: &Path) {
    let mut writer = Writer::create(path).unwrap();
    let pid = 4711;
    for round in 0..200u64 {
        let now = 1_000 * MS + round * 10 * MS;
        let (on, off) = (round as u32 % 2, (round as u32 + 1) % 2);
        let at = Location {
            task: Some("churn".into()),
            pid: Some(7),
            function: Some("shmem_get_inode+0x1b".into()),
        };
        for event in [
            Event::GraceBegan { time_ns: now, pid, seq: 4 * round },
            Event::Preempted {
                time_ns: now,
                pid,
                vcpu: off,
                class: Class::NoPreempt,
                reader: true,
                at,
            },
            Event::On { time_ns: now, pid, vcpu: on, cpu: 1, was: None },
            Event::GraceEnded { time_ns: now + 9 * MS, pid, seq: 4 * round },
        ] {
            writer.event(event).unwrap();
        }
    }
    writer.finish().unwrap();
}

/// Says what is missing after the page, which is long.
#[track_caller]
fn assert_shows(dom: &str, text: &str) {
    assert!(dom.contains(text), "{dom}\n{} bytes of a page without `{text}`", dom.len());
}

#[test]
fn the_time_lines_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (recording, html) = (dir.path().join("recording"), dir.path().join("page.html"));
    record(&recording);
    page::write(&recording, &html).unwrap();
    let Seen { dom, console, requests } = open(&html, "");
    assert!(console.is_empty() && requests.is_empty(), "{console:?} {requests:?}");
    // Set by the script's last line.
    assert_shows(&dom, "data-ready=\"yes\"");
    // Set by drawing: the band, two lanes, the axis.
    assert_shows(&dom, "style=\"height: 88px;\"");
    assert_shows(&dom, "0.0000 s to 1.9990 s");
    let Seen { dom, console, .. } = open(&html, "#gp-0-3");
    assert!(console.is_empty(), "{console:?}");
    assert_shows(&dom, "<tr id=\"gp-0-3\" class=\"picked\">");
    assert_shows(&dom, "(13.6 ms of 2.00 s)");
}

#[test]
fn another_script_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (recording, html) = (dir.path().join("recording"), dir.path().join("page.html"));
    record(&recording);
    page::write(&recording, &html).unwrap();
    let changed =
        std::fs::read_to_string(&html).unwrap().replace("\"use strict\";", "\"use  strict\";");
    std::fs::write(&html, changed).unwrap();
    let Seen { dom, console, .. } = open(&html, "");
    assert!(!dom.contains("data-ready"), "{dom}");
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:?}");
}
