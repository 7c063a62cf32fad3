// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recording as one HTML page: per VM the states of its vCPUs below its grace periods, so that a
//! reader sees the preemption that a grace period waited for.
//!
//! The page is one file with its style, its script and its data. Its content security policy allows
//! that script (by its hash) and no request. Names from guests go through [`plain`], then through
//! maud or, in the data, JSON; the script puts them on the page as text only.
//!
//! Large recordings are thinned, and the page says how: shares of time per column are there
//! everywhere, rounded; single states are kept around the longest grace periods only ([`overview`],
//! [`detail`]).

mod data;
mod detail;
mod overview;
mod scan;

use super::recording::{self, Reader};
use super::text::{NONE, grace_period, location, plain, several, time};
use data::{data, micros};
use detail::{Detail, Evidence};
use maud::{Markup, PreEscaped, html};
use overview::{Overview, VmOverview};
use reprieve_page::{Page, document};
use scan::{Period, Scan};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Recording(#[from] recording::Error),
    #[error("{0}: the recording has no events; it was cut off before the first, or no VM ran")]
    Empty(String),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{0} is the recording itself: name another file for the page")]
    Same(String),
    #[error("the data of the page: {0}")]
    Data(#[from] serde_json::Error),
}

/// Reads the recording `file` and writes its page to `out`, whole or not at all.
///
/// # Errors
/// When `file` is no recording or empty, and when `out` is `file`, or cannot be written.
pub fn write(file: &Path, out: &Path) -> Result<(), Error> {
    let id = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if id(file).is_some_and(|recording| id(out) == Some(recording)) {
        return Err(Error::Same(out.display().to_string()));
    }
    let page = page(file)?;
    reprieve_page::write(out, page.as_bytes())
        .map_err(|source| Error::Io { path: out.display().to_string(), source })
}

/// The page for the recording `file`.
///
/// # Errors
/// As [`write`].
pub fn page(file: &Path) -> Result<String, Error> {
    let mut overview = Overview::new();
    let (first, reader) = read(file, &mut overview)?;
    let Some(span) = first.span.filter(|_| !overview.vms.is_empty()) else {
        return Err(Error::Empty(file.display().to_string()));
    };
    let mut detail = Detail::new(&overview, span);
    read(file, &mut detail)?;
    render(&overview, &detail, &first, &reader)
}

fn read(file: &Path, sink: &mut dyn scan::Sink) -> Result<(Scan, Reader), Error> {
    let mut reader = Reader::open(file)?;
    let mut scan = Scan::default();
    for record in reader.by_ref() {
        scan.feed(&record?, sink);
    }
    scan.finish(sink);
    Ok((scan, reader))
}

fn render(
    overview: &Overview,
    detail: &Detail,
    scan: &Scan,
    reader: &Reader,
) -> Result<String, Error> {
    let span = scan.span.unwrap_or_default();
    // No text of the data can end the element that holds it.
    let data = serde_json::to_string(&data(overview, detail, span))?.replace('<', "\\u003c");
    let header = reader.header();
    let length = time(span.1.saturating_sub(span.0) as f64);
    let title =
        format!("Grace periods and preemptions on {} - Reprieve watch", plain(&header.host));
    let body = html! {
        header {
            h1 { "Grace periods and preemptions on " (plain(&header.host)) }
            p class="soft" {
                (several(overview.vms.len(), "VM")) ", " (length) ", Linux " (plain(&header.kernel))
                ", recorded by " (plain(&header.by)) "; " (scan.events) " events"
            }
        }
        (warnings(overview, detail, scan, reader))
        noscript { p class="warn" { "The time lines need JavaScript; the table below does not." } }
        (controls())
        @for (index, (pid, vm)) in overview.vms.iter().enumerate() {
            (section(index, *pid, vm, detail, overview.origin()))
        }
        (explanation())
        script id="data" type="application/json" { (PreEscaped(data)) }
        div id="tip" hidden {}
    };
    Ok(document(Page { title: &title, style: STYLE, script: Some(SCRIPT), body }))
}

/// The parts that are missing or thinned.
fn warnings(overview: &Overview, detail: &Detail, scan: &Scan, reader: &Reader) -> Markup {
    let everything =
        detail.dropped == 0 && detail.windows.iter().all(|w| Some((w.from, w.to)) == scan.span);
    html! {
        @if scan.lost > 0 {
            p class="warn" {
                (scan.lost) " events were lost while this was recorded. States after a gap are shown as not seen until the vCPU's next event, and grace periods across it are left out."
            }
        }
        @if reader.cut_off() {
            p class="warn" { "The recording was cut off; it is shown up to there." }
        }
        @if !overview.hidden.is_empty() {
            p class="warn" { (overview.hidden.len()) " more vCPUs are not shown." }
        }
        @if !everything {
            p class="note" {
                "This recording is too large to show every switch everywhere. Each column of " (time(overview.width as f64))
                " shows the exact share of time in each state, but not their order; every single state is shown around the longest grace periods, which the tables link to."
                @if detail.dropped > 0 { " There was no room for " (several(detail.dropped, "more of these")) "." }
            }
        }
    }
}

fn controls() -> Markup {
    html! {
        nav class="controls" {
            button type="button" data-do="all" { "Show all" }
            button type="button" data-do="in" { "Zoom in" }
            button type="button" data-do="out" { "Zoom out" }
            button type="button" data-do="left" { "←" }
            button type="button" data-do="right" { "→" }
            span id="where" class="soft" {}
            ul class="legend" {
                @for (state, name) in scan::names().iter().enumerate() {
                    li { i class=(format!("s{state}")) {} (name) }
                }
                li { i class="gp" {} "grace period" }
            }
        }
    }
}

fn section(index: usize, pid: u32, vm: &VmOverview, detail: &Detail, origin: u64) -> Markup {
    let mean = if vm.count > 0 { vm.total_ns as f64 / vm.count as f64 } else { f64::NAN };
    html! {
        section {
            h2 { (plain(&vm.name)) }
            p class="soft" {
                "pid " (pid) ", " (plain(&vm.vmm)) ", Linux " (vm.kernel.as_deref().map_or("not known".into(), plain))
                "; " (several(usize::try_from(vm.count).unwrap_or(usize::MAX), "grace period")) ", " (time(mean)) " on average"
            }
            @for line in &vm.blind { p class="note" { "Not visible: " (plain(line)) } }
            div class="line" { canvas data-vm=(index) tabindex="0" role="img" aria-label=(format!("Time lines of {}", plain(&vm.name))) {} }
            @if !vm.longest.is_empty() {
                h3 { "Longest grace periods" }
                div class="scroll" { table {
                    thead { tr {
                        th { "length" } th { "began at" } th { "number" } th class="text" { "longest preemption in it" }
                    } }
                    tbody { @for (n, period) in vm.longest.iter().enumerate() {
                        (row(index, n, pid, period, detail, origin))
                    } }
                } }
            }
        }
    }
}

fn row(index: usize, n: usize, pid: u32, period: &Period, detail: &Detail, origin: u64) -> Markup {
    let evidence = detail.evidence.get(&(pid, scan::number(period.seq)));
    let from = micros(origin, period.from);
    html! {
        tr id=(format!("gp-{index}-{n}")) {
            td {
                a href=(format!("#gp-{index}-{n}")) data-vm=(index) data-from=(from) data-length=(micros(period.from, period.to)) {
                    (time(period.length() as f64))
                }
                @if period.open { " and not over" }
            }
            td { (format!("{:.3} s", from / 1e6)) }
            td { (grace_period(period.seq)) }
            td class="text" {
                (cause(pid, period, detail))
                @if let Some(evidence) = evidence { (waited(evidence)) }
                @if detail.window(pid, period).is_none() {
                    span class="soft" { "; not kept in detail" }
                }
            }
        }
    }
}

fn cause(pid: u32, period: &Period, detail: &Detail) -> Markup {
    match detail.cause(pid, period) {
        None => html! { "none" },
        Some((vcpu, segment, inside)) => html! {
            i class=(format!("s{} dot", segment.state)) {}
            "vCPU " (vcpu) ", " (time(inside as f64)) " "
            (scan::names()[usize::from(segment.state)].trim_start_matches("preempted: "))
            @if segment.reader { " (RCU reader)" }
            @let at = location(&segment.at);
            @if at != NONE { ": " code { (at) } }
        },
    }
}

fn waited(evidence: &Evidence) -> Markup {
    html! {
        @if !evidence.owing.is_empty() {
            span class="soft" {
                "; after " (time(evidence.age as f64)) " it waited for vCPU "
                @for (n, vcpu) in evidence.owing.iter().take(12).enumerate() {
                    @if n > 0 { ", " }
                    (vcpu)
                }
                @if evidence.owing.len() > 12 { " and " (evidence.owing.len() - 12) " more" }
            }
        }
        @for reader in evidence.blocked_readers.iter().take(2) {
            span class="soft" { "; for the blocked reader " (location(reader)) }
        }
    }
}

fn explanation() -> Markup {
    html! {
        h2 { "How to read this" }
        p {
            "The band at the top of each VM holds its grace periods, as seen from the host; below it each vCPU has a line. A grace period ends when every vCPU "
            "has passed a quiescent state since it began, so one that is off its CPU the whole time holds it up. "
            "\"Longest preemption in it\" is of the vCPUs that owed a quiescent state where a snapshot was taken during the grace period, else of all."
        }
        p { "Drag to move, Ctrl and the wheel or the keys + and - to zoom, arrow keys to move; all VMs show the same time." }
    }
}

#[cfg(test)]
mod tests;
