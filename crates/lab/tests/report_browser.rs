// SPDX-License-Identifier: MIT OR Apache-2.0
//! `report.html` in headless Chromium: it shows the figures of `summary.json`, draws its charts, and asks the network for nothing.
//!
//! The browser has no network here (no name resolves, and what it asks for is logged), so a page that needed something
//! would also look wrong. That the checks can fail is checked with pages that do complain and do ask.

mod report_common;

use report_common::{Scratch, data};
use reprieve_lab::plan::Scenario;
use reprieve_lab::process;
use reprieve_lab::report::{self, Summary};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a busy machine without hardware virtualization.
const LIMIT: Duration = Duration::from_secs(120);

/// What a browser made of a page.
struct Seen {
    /// The document after loading, as HTML.
    dom: String,
    /// Lines that the page caused on the console.
    console: Vec<String>,
    /// Everything but files that was asked for.
    requests: Vec<String>,
}

/// A browser with a profile of its own; both are gone when this is.
struct Browser {
    child: Child,
    profile: Scratch,
}

impl Drop for Browser {
    fn drop(&mut self) {
        process::kill(&mut self.child);
        // Helpers of the browser end with it; the profile can only go when none writes to it any more.
        let end = Instant::now() + Duration::from_secs(10);
        while !processes(self.child.id(), &self.profile.0).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Processes of `group`, and those whose command line names `path` (helpers may have left the group).
fn processes(group: u32, path: &Path) -> Vec<u32> {
    let name = path.as_os_str().as_encoded_bytes();
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: state, parent, process group.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let member = fields.get(2).is_some_and(|g| *g == group.to_string()) && fields[0] != "Z";
        if pid != std::process::id() && (member || cmdline.windows(name.len()).any(|w| w == name)) {
            found.push(pid);
        }
    }
    found
}

fn chromium() -> PathBuf {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .flat_map(|dir| names.map(|n| dir.join(n)))
        .find(|p| p.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "no Chromium on PATH ({}): install one, e.g. `apt-get install chromium`",
            names.join(", ")
        )
    })
}

fn open(page: &Path) -> Seen {
    let profile = Scratch::new("browser");
    let log = profile.0.join("net.json");
    let dom_file = profile.0.join("dom.html");
    let error_file = profile.0.join("stderr");
    let mut command = Command::new(chromium());
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-breakpad", "--disable-crash-reporter", "--disable-dev-shm-usage"])
        .args(["--disable-default-apps", "--no-default-browser-check", "--no-pings"])
        .args(["--enable-logging=stderr", "--log-level=0", "--dump-dom"])
        .arg("--host-resolver-rules=MAP * ~NOTFOUND")
        .arg(format!("--user-data-dir={}", profile.0.display()))
        .arg(format!("--log-net-log={}", log.display()))
        .arg(format!("file://{}", page.display()))
        // Where it would leave files of its own.
        .env("TMPDIR", &profile.0)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&dom_file).unwrap())
        .stderr(std::fs::File::create(&error_file).unwrap());
    let child = process::spawn(&mut command).unwrap();
    let mut browser = Browser { child, profile };
    let status = process::wait(&mut browser.child, "chromium", LIMIT, &Default::default());
    let read = |path: &Path| {
        let mut bytes = vec![];
        std::fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (dom, errors) = (read(&dom_file), read(&error_file));
    assert!(status.is_ok_and(|s| s.success()), "chromium failed: {errors}");
    let console = errors.lines().filter(|l| l.contains(":CONSOLE")).map(str::to_owned).collect();
    let requests = requests(&read(&log), page);
    Seen { dom, console, requests }
}

/// What the page made the browser ask for, from its net log, other than local files. What the browser asks on its own
/// behalf has no initiator; it does not count, and gets no answer.
fn requests(log: &str, page: &Path) -> Vec<String> {
    let mut urls: Vec<String> = vec![];
    for line in log.lines() {
        // One event per line; only those that start a request have both.
        match (text_of(line, "initiator"), text_of(line, "url")) {
            (Some(initiator), Some(url)) if initiator != "not an origin" => urls.push(url),
            _ => {}
        }
    }
    let own = format!("file://{}", page.display());
    assert!(log.contains(&own), "the net log does not show the page itself");
    urls.retain(|url| !url.starts_with("file://"));
    urls.sort();
    urls.dedup();
    urls
}

/// The string under `name` in a line of a net log.
fn text_of(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    Some(before(rest, "\"").to_owned())
}

/// Text and exact value of a cell of the full table.
fn cell(dom: &str, item: &str, key: &str, column: &str) -> (String, Option<f64>) {
    let table = after(dom, &format!("<table class=\"full\" data-item=\"{item}\">"));
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
fn shows(dom: &str, summary: &Summary) {
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
                let (text, value) = cell(dom, &item, &row.key, column);
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
fn charts(dom: &str, expected: &[&str]) {
    let mut drawn: Vec<&str> = vec![];
    for part in dom.split("<svg class=\"chart\"").skip(1) {
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

/// Of every run with repeats.
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
        let seen = open(&dir.join("report.html"));
        assert_eq!((seen.console, seen.requests), (vec![], vec![]), "{name}");
        shows(&seen.dom, &summary);
        charts(&seen.dom, &CHARTS);
        if summary.plan.measure.callback_probe_hz > 0 {
            charts(&seen.dom, &["Distribution of callback latencies"]);
        }
        let command = format!("<pre>{}</pre>", summary.plan.command);
        assert!(seen.dom.contains(&command), "{name}: the command to repeat it");
    }
}

#[test]
fn a_comparison_shows_both_runs() {
    let scratch = Scratch::new("both");
    let raw = std::fs::read(data("churn").join("raw.jsonl")).unwrap();
    let dirs = [scratch.raw("before", &raw), scratch.raw("after", &raw)];
    let page = scratch.0.join("both.html");
    let summaries = report::compare(&dirs, &page).unwrap();
    let seen = open(&page);
    assert_eq!((seen.console, seen.requests), (vec![], vec![]));
    charts(&seen.dom, &CHARTS);
    let mean = summaries[0].variants[0].row("gp_mean").unwrap().ratio;
    for item in ["A", "B"] {
        let (_, value) = cell(&seen.dom, item, "gp_mean", "ratio");
        assert!((value.unwrap() / mean.unwrap() - 1.0).abs() < 1e-9);
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
    let seen = open(&dir.join("report.html"));
    assert_eq!((seen.console, seen.requests), (vec![], vec![]));
    assert!(!seen.dom.contains("<title>owned") && !seen.dom.contains("<img"));
    assert!(seen.dom.contains("&lt;script&gt;document.title='owned'"), "shown as text");
}

/// The checks above would notice: a blocked image is on the console, one that is not blocked is a request.
#[test]
fn the_browser_tells_on_pages_that_ask() {
    let scratch = Scratch::new("asks");
    let dir = stored(&scratch, "churn");
    report::write(&dir).unwrap();
    let page = std::fs::read_to_string(dir.join("report.html")).unwrap();
    let asking = page.replace("</body>", "<img src=\"http://lab.invalid/x.png\"></body>");
    let blocked = dir.join("blocked.html");
    std::fs::write(&blocked, &asking).unwrap();
    let seen = open(&blocked);
    assert!(
        seen.console.iter().any(|l| l.contains("Content Security Policy")),
        "{:?}",
        seen.console
    );
    assert_eq!(seen.requests, [""; 0], "the page's policy holds");

    let free = dir.join("free.html");
    std::fs::write(&free, asking.replace("http-equiv=\"Content-Security-Policy\"", "name=\"x\""))
        .unwrap();
    assert_eq!(open(&free).requests, ["http://lab.invalid/x.png"]);
}

#[test]
fn nothing_of_the_browser_stays() {
    let scratch = Scratch::new("stays");
    let page = scratch.0.join("page.html");
    std::fs::write(&page, "<!DOCTYPE html><title>x</title>").unwrap();
    open(&page);
    assert_eq!(processes(u32::MAX, &page), [0u32; 0]);
    // A browser that is given up on goes too, with its helpers.
    let profile = Scratch::new("browser");
    let path = profile.0.clone();
    let child = process::spawn(
        Command::new(chromium())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"])
            .args([
                "--disable-breakpad",
                "--disable-crash-reporter",
                "--host-resolver-rules=MAP * ~NOTFOUND",
            ])
            .arg(format!("--user-data-dir={}", path.display()))
            .env("TMPDIR", &path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
    .unwrap();
    let group = child.id();
    let browser = Browser { child, profile };
    let end = Instant::now() + LIMIT;
    while processes(group, &path).len() < 3 {
        assert!(Instant::now() < end, "the browser does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(browser);
    assert_eq!(processes(group, &path), [0u32; 0]);
    assert!(!path.exists(), "its profile is gone");
}
