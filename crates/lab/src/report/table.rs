// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paper's table as text for a terminal.
//!
//! A single variant gets the full table: a row per figure, baseline, overcommit, ratio and the
//! paper's figures beside them. Several variants get one row each in a compact table.
//! Everything fits 80 columns; what came from a guest or a file is freed of control characters
//! first.

use super::format::{self, plain};
use super::policies;
use super::summary::{Row, Summary, VariantSummary};
use crate::plan::{Plan, Scenario};
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets,
};
use std::fmt::Write;

/// The least width, also for narrower terminals.
const NARROWEST: usize = 80;

/// Rows whose spread over the repeats is shown.
const SPREAD: [&str; 3] = ["gp_mean", "memory_growth", "throughput"];

/// A column of a compact table.
enum Column {
    Baseline(&'static str),
    Overcommit(&'static str),
    Ratio(&'static str),
}

use Column::{Baseline, Overcommit, Ratio};

/// A compact table: title, then heading and content of each column.
type Compact = (&'static str, &'static [(&'static str, Column)]);

const COMPACT: [Compact; 6] = [
    (
        "Grace periods, ms, alone and overcommitted; throughput, {throughput}",
        &[
            ("alone\nmean", Baseline("gp_mean")),
            ("\np50", Baseline("gp_p50")),
            ("\np90", Baseline("gp_p90")),
            ("\nmax", Baseline("gp_max")),
            ("over\nmean", Overcommit("gp_mean")),
            ("\np50", Overcommit("gp_p50")),
            ("\np90", Overcommit("gp_p90")),
            ("\nmax", Overcommit("gp_max")),
            ("mean\nratio", Ratio("gp_mean")),
            ("thr.put\nalone", Baseline("throughput")),
            ("\nover", Overcommit("throughput")),
        ],
    ),
    (
        "Memory, MiB; CPU per grace period, us; vCPU preemptions, 1/s",
        &[
            ("growth\nalone", Baseline("memory_growth")),
            ("\nover", Overcommit("memory_growth")),
            ("\nratio", Ratio("memory_growth")),
            ("spike\nalone", Baseline("memory_spike")),
            ("\nover", Overcommit("memory_spike")),
            ("\nratio", Ratio("memory_spike")),
            ("CPU/GP\nalone", Baseline("gp_cpu")),
            ("\nover", Overcommit("gp_cpu")),
            ("\nratio", Ratio("gp_cpu")),
            ("preempt.\nover", Overcommit("vcpu_preemptions")),
        ],
    ),
    (
        "Critical-section preemptions, overcommitted, 1/s",
        &[
            ("all", Overcommit("critical_preemptions")),
            ("reader", Overcommit("critical_preemptions.reader")),
            ("no-preempt", Overcommit("critical_preemptions.no-preempt")),
            ("irqs-off", Overcommit("critical_preemptions.irqs-off")),
            ("softirq", Overcommit("critical_preemptions.softirq")),
            ("hardirq", Overcommit("critical_preemptions.hardirq")),
        ],
    ),
    (
        "Phases survived, %; soonest out of memory, s",
        &[
            ("survived\nalone", Baseline("survived")),
            ("\nover", Overcommit("survived")),
            ("died after\nalone", Baseline("out_of_memory")),
            ("\nover", Overcommit("out_of_memory")),
        ],
    ),
    (
        "CPU time of the tested guest, overcommitted: s, and against its entitlement",
        &[
            ("CPU time\nof a phase", Overcommit("cpu_seconds_subject")),
            ("got\nof 10", Overcommit("cpu_of_10_subject")),
            ("entitled\nof 10", Overcommit("cpu_of_10_entitled")),
            ("beyond\n%", Overcommit("cpu_deviation_subject")),
        ],
    ),
    (
        "Callback latency, ms",
        &[
            ("alone\nmean", Baseline("callback_latency_mean")),
            ("\np50", Baseline("callback_latency_p50")),
            ("\np99", Baseline("callback_latency_p99")),
            ("\nmax", Baseline("callback_latency_max")),
            ("over\nmean", Overcommit("callback_latency_mean")),
            ("\np50", Overcommit("callback_latency_p50")),
            ("\np99", Overcommit("callback_latency_p99")),
            ("\nmax", Overcommit("callback_latency_max")),
            ("mean\nratio", Ratio("callback_latency_mean")),
        ],
    ),
];

impl Summary {
    /// The table for a terminal of `width` columns, with notices below; ends with a line feed.
    pub fn to_text(&self, width: usize) -> String {
        let width = width.max(NARROWEST);
        let mut out = String::new();
        let _ = writeln!(out, "{}", headline(self));
        let _ = writeln!(out, "{}\n", paragraph(&conditions(self), width));
        if let [variant] = self.variants.as_slice() {
            let _ = writeln!(out, "{}", trimmed(full(self, variant, width)));
        } else {
            let entries: Vec<_> =
                self.variants.iter().map(|v| (plain(&v.variant.label), v)).collect();
            out.push_str(&compact(self, &entries, width));
        }
        out.push_str(&spreads(self, width));
        if let Some(costs) = &self.costs {
            let _ = write!(out, "\nCosts of this bed\n{}", costs.to_text());
        }
        out.push_str(&remarks(self, width));
        out
    }
}

/// The few lines of [`Summary::to_brief`].
pub fn brief(
    s: &Summary,
    header: impl Iterator<Item = String>,
    rows: impl Iterator<Item = Vec<String>>,
    width: usize,
) -> String {
    let width = width.max(NARROWEST);
    let mut table = bare(width);
    table.set_header(header);
    table.add_rows(rows);
    align(&mut table);
    let (head, conditions) = (headline(s), paragraph(&conditions(s), width));
    format!("{head}\n{conditions}\n\n{}\n{}", trimmed(table), remarks(s, width))
}

/// `membench, scale quick, 2026-11-20T16:00:00Z`
fn headline(s: &Summary) -> String {
    let mark = if s.complete { "" } else { " (INCOMPLETE)" };
    format!("{}{mark}, {}, {}", plain(&s.experiment), scale(&s.plan), plain(&s.started))
}

fn scale(plan: &Plan) -> String {
    format!("{} scale", plan.scale.name())
}

/// Guests, host and phases of a run, in one line.
fn conditions(s: &Summary) -> String {
    let mut kernels: Vec<&str> =
        s.guests.iter().filter(|g| g.variant.is_some()).map(|g| g.info.kernel.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let guests = if kernels.is_empty() {
        String::new()
    } else {
        format!("guest {}, ", kernels.join(" and "))
    };
    let dilated = match s.host.mode.as_str() {
        "nested" => format!(", time {}", s.host.dilation),
        _ => String::new(),
    };
    let slice = s.host.base_slice_ns;
    let slice = slice.map_or(String::new(), |ns| format!(" (slice {} ms)", ns as f64 / 1e6));
    plain(&format!(
        "{guests}{} vCPUs{}; {} host of {} CPUs{dilated}, Linux {}{slice}; {} x {} s per scenario",
        s.plan.subject.vcpus,
        cgroups(&s.plan),
        s.host.mode,
        s.host.cpus,
        s.host.kernel,
        s.plan.repeat,
        s.plan.phase_ms as f64 / 1000.0
    ))
}

/// The weights of the VMs' cgroups, and the limit of the VM under test, where they have any.
fn cgroups(plan: &Plan) -> String {
    let mut weights: Vec<u32> = plan.competitors.iter().map(|vm| vm.cgroup.weight).collect();
    weights.dedup();
    let own = plan.subject.cgroup;
    let mut out = String::new();
    if weights.iter().any(|&weight| weight != own.weight) {
        let others = weights.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let _ = write!(out, " of cpu.weight {} beside {others}", own.weight);
    }
    if let Some(percent) = own.max_percent {
        let _ = write!(out, " under a cpu.max of {percent} % of a CPU");
    }
    out
}

fn label(s: &Summary, row: &Row) -> String {
    s.metric(&row.key).map_or_else(|| plain(&row.key), |m| format::with_unit(&m.label, &m.unit))
}

/// Baseline, overcommit, ratio; then the paper's, blank where it has none.
fn figures(row: &Row) -> [String; 6] {
    let paper = |f: fn(&super::PaperFigure) -> Option<f64>, show: fn(f64) -> String| {
        row.paper.as_ref().and_then(f).map(show).unwrap_or_default()
    };
    [
        format::cell(row.baseline.as_ref()),
        format::cell(row.overcommit.as_ref()),
        format::bounded_ratio(row.bounded_ratio()),
        paper(|p| p.baseline, format::number),
        paper(|p| p.overcommit, format::number),
        paper(|p| p.ratio, |r| format::ratio(Some(r))),
    ]
}

fn full(s: &Summary, variant: &VariantSummary, width: usize) -> Table {
    let paper = variant.rows.iter().any(|r| r.paper.is_some());
    let columns = if paper { 7 } else { 4 };
    let mut table = bare(width);
    let header = ["", "baseline", "overcommit", "ratio", "paper\nbase", "\nover", "\nratio"];
    table.set_header(&header[..columns]);
    let mut group = "";
    for row in &variant.rows {
        if let Some(metric) = s.metric(&row.key).filter(|m| m.group != group) {
            group = &metric.group;
            table.add_row([plain(group)]);
        }
        let mut cells = vec![format!("  {}", label(s, row))];
        cells.extend(figures(row));
        cells.truncate(columns);
        table.add_row(cells);
    }
    align(&mut table);
    table
}

/// The compact tables that are not empty. `s` has the meaning of the rows.
fn compact(s: &Summary, entries: &[(String, &VariantSummary)], width: usize) -> String {
    let mut out = String::new();
    let unit = s.metric("throughput").map_or("1/s", |m| m.unit.as_str());
    // Labels too long for their column go below, under a letter.
    let longest = entries.iter().map(|(l, _)| l.chars().count()).max().unwrap_or(0);
    let compared = entries.iter().any(|(_, v)| policies::compared(v));
    let keyed = longest + if compared { policies::WIDTH } else { 66 } > width;
    let show = |i: usize, label: &str| if keyed { letter(i) } else { label.to_owned() };
    for (title, columns) in COMPACT {
        let figure = |v: &VariantSummary, column: &Column| match column {
            Baseline(key) => Some(format::cell(Some(v.row(key)?.baseline.as_ref()?))),
            Overcommit(key) => Some(format::cell(Some(v.row(key)?.overcommit.as_ref()?))),
            Ratio(key) => Some(format::bounded_ratio(Some(v.row(key)?.bounded_ratio()?))),
        };
        if !entries.iter().any(|(_, v)| columns.iter().any(|(_, c)| figure(v, c).is_some())) {
            continue;
        }
        let mut table = bare(width);
        table.set_header(std::iter::once("").chain(columns.iter().map(|(heading, _)| *heading)));
        for (i, (label, v)) in entries.iter().enumerate() {
            let cells =
                columns.iter().map(|(_, c)| figure(v, c).unwrap_or_else(|| format::NONE.into()));
            table.add_row(std::iter::once(show(i, label)).chain(cells));
        }
        align(&mut table);
        let _ = writeln!(out, "{}", title.replace("{throughput}", &plain(unit)));
        let _ = writeln!(out, "{}\n", trimmed(table));
    }
    for comparison in &policies::TABLES {
        let mut table = bare(width);
        table.set_header(std::iter::once(String::new()).chain(comparison.headings()));
        for (i, (label, v)) in entries.iter().enumerate() {
            if let Some(cells) = comparison.cells(v) {
                table.add_row(std::iter::once(show(i, label)).chain(cells));
            }
        }
        if !table.is_empty() {
            align(&mut table);
            let _ = writeln!(out, "{}\n{}\n", comparison.title, trimmed(table));
        }
    }
    if keyed {
        for (i, (label, _)) in entries.iter().enumerate() {
            let _ = writeln!(out, "{}  {label}", letter(i));
        }
    }
    out
}

/// `A` to `Z`, then `A1` and so on.
fn letter(i: usize) -> String {
    let c = char::from(b'A' + (i % 26) as u8);
    if i < 26 { c.to_string() } else { format!("{c}{}", i / 26) }
}

/// The spread over the repeats of the rows in [`SPREAD`]; with several variants only of the first.
fn spreads(s: &Summary, width: usize) -> String {
    if s.plan.repeat < 2 {
        return "\none repeat, so no spread is known\n".into();
    }
    let several = s.variants.len() > 1;
    let keys = if several { &SPREAD[..1] } else { &SPREAD[..] };
    let mut table = bare(width);
    table.set_header(["", "baseline\nmin..max", "\ncv", "overcommit\nmin..max", "\ncv"]);
    for variant in &s.variants {
        for row in keys.iter().filter_map(|k| variant.row(k)) {
            let part = |scenario| {
                let spread = row.cell(scenario).and_then(|c| c.spread);
                let range =
                    spread.map(|s| format!("{}..{}", format::number(s.min), format::number(s.max)));
                let cv = spread.and_then(|s| s.cv).map(|cv| format!("{:.1} %", 100.0 * cv));
                [range, cv].map(|text| text.unwrap_or_else(|| format::NONE.into()))
            };
            let of = if several { plain(&variant.variant.label) } else { label(s, row) };
            let (b, o) = (part(Scenario::Baseline), part(Scenario::Overcommit));
            table.add_row(std::iter::once(of).chain(b).chain(o));
        }
    }
    align(&mut table);
    let what = if several { "GP mean, ms, " } else { "" };
    format!("\n{what}spread over {} repeats\n{}\n", s.plan.repeat, trimmed(table))
}

/// Why the run is incomplete, where the paper's figures mean something else, and the notices.
fn remarks(s: &Summary, width: usize) -> String {
    let mut lines: Vec<(&str, String)> = vec![];
    if !s.complete {
        let why = s.incomplete_reason.as_deref().unwrap_or("no reason recorded");
        lines.push(("incomplete", plain(why)));
    }
    if let [variant] = s.variants.as_slice() {
        for row in &variant.rows {
            if let (Some(note), Some(_)) =
                (row.paper.as_ref().and_then(|p| p.note.as_ref()), row.ratio)
            {
                lines.push(("paper", format!("{}: {note}", label(s, row))));
            }
        }
    }
    lines.extend(s.notices.iter().map(|n| ("notice", plain(n))));
    if lines.is_empty() {
        return String::new();
    }
    let mut table = bare(width);
    for (kind, text) in lines {
        table.add_row([format!("{kind}:"), text]);
    }
    format!("\n{}\n", trimmed(table))
}

/// A table without lines but one below its header, no wider than `width`.
fn bare(width: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_style(TableComponent::HeaderLines, '─');
    table.set_style(TableComponent::MiddleHeaderIntersections, '─');
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table
}

/// Figures to the right, labels to the left, one space between columns.
fn align(table: &mut Table) {
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(i > 0), 0));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
            // A table that is too wide is better than a figure broken over two lines.
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    if let Some(header) = table.header() {
        let cells: Vec<Cell> = header
            .cell_iter()
            .enumerate()
            .map(|(i, c)| {
                let side = if i > 0 { CellAlignment::Right } else { CellAlignment::Left };
                Cell::new(c.content()).set_alignment(side)
            })
            .collect();
        table.set_header(cells);
    }
}

fn paragraph(text: &str, width: usize) -> String {
    let mut table = bare(width);
    table.add_row([text]);
    align(&mut table);
    trimmed(table)
}

fn trimmed(table: Table) -> String {
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}
