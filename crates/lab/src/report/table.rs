// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as text for a terminal.
//!
//! The first table has a row for each condition. Then each variant has a table of its own: a row
//! per figure, baseline, overcommit, ratio and the paper's figures beside them. Everything fits 80
//! columns. Text of a guest or a file is freed of control characters first.

use super::format::{self, plain};
use super::summary::{Row, Summary, VariantSummary};
use crate::plan::{Plan, Scenario};
use crate::policy::Policy;
use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets,
};
use std::fmt::Write;

/// The least width, also for narrower terminals.
const NARROWEST: usize = 80;

/// Labels of variants that are longer stand below the table, under a letter.
const LONGEST_LABEL: usize = 20;

/// The columns that compare conditions: heading, and key of the row.
const COLUMNS: [(&str, &str); 8] = [
    ("GP mean\nms", SPREAD),
    ("90 %\nbelow", "gp_p90"),
    ("longest\n", "gp_max"),
    ("memory\nMiB", "memory_peak"),
    ("", THROUGHPUT),
    ("CPUs\nused", CPUS),
    ("critical\npreempt.", "critical_preemptions"),
    ("survived\n%", SURVIVED),
];

/// With the range of the repeats in a second line.
const SPREAD: &str = "gp_mean";
/// Under its unit.
const THROUGHPUT: &str = "throughput";
/// Shown as a number of CPUs.
const CPUS: &str = "host_cpu_subject";
/// Shown if a guest did not survive a phase.
const SURVIVED: &str = "survived";

impl Summary {
    /// The conditions side by side, and each variant with all figures, for a terminal of `width`
    /// columns, with notices below; ends with a line feed.
    pub fn to_text(&self, width: usize) -> String {
        let width = width.max(NARROWEST);
        let mut out = self.head(width);
        for variant in &self.variants {
            if self.variants.len() > 1 {
                let _ = writeln!(out, "\n{}", plain(&variant.variant.label));
            }
            let _ = writeln!(out, "\n{}", trimmed(full(self, variant, width)));
        }
        if let Some(costs) = &self.costs {
            let _ = write!(out, "\nCosts of this bed\n{}", costs.to_text());
        }
        out + &remarks(self, width)
    }

    /// A few lines: the conditions side by side, and the notices.
    pub fn to_brief(&self, width: usize) -> String {
        let width = width.max(NARROWEST);
        self.head(width) + &remarks(self, width)
    }

    fn head(&self, width: usize) -> String {
        let conditions = paragraph(&conditions(self), width);
        format!("{}\n{conditions}\n\n{}", headline(self), side_by_side(self, width))
    }
}

/// A row for each guest alone, and one for each variant overcommitted.
fn side_by_side(s: &Summary, width: usize) -> String {
    let references = references(&s.plan);
    let one_guest = s.plan.guests().iter().all(|&guest| guest == 0);
    let (mut rows, mut keys) = (vec![], String::new());
    for (i, v) in s.variants.iter().enumerate() {
        let (label, policies) = (plain(&v.variant.label), one_guest && references[i].is_some());
        let name = match &v.variant.policy {
            Policy::Guard(..) if policies => format!("guard: {label}"),
            _ if policies => format!("stock: {label}"),
            _ if label.chars().count() <= LONGEST_LABEL => label,
            _ => {
                let letter = letter(i);
                let _ = writeln!(keys, "{letter}  {label}");
                letter
            }
        };
        // A guest alone under the stock scheduler serves all policies.
        if references[i].is_none_or(|reference| reference == i) {
            let alone = if policies { "alone".into() } else { format!("{name}, alone") };
            rows.push((alone, v, Scenario::Baseline));
        }
        rows.push((name, v, Scenario::Overcommit));
    }
    let value = |v: &VariantSummary, key: &str, scenario| {
        let cell = v.row(key)?.cell(scenario)?;
        Some(if key == CPUS { cell.times(f64::from(s.host.cpus) / 100.0) } else { cell.clone() })
    };
    let shown = |key| {
        let mut cells = rows.iter().filter_map(|(_, v, scenario)| value(v, key, *scenario));
        if key == SURVIVED { cells.any(|cell| cell.value < 100.0) } else { cells.next().is_some() }
    };
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(_, key)| shown(key)).collect();
    let mut table = bare(width);
    let heading = |(heading, key): &(&str, &str)| match s.metric(THROUGHPUT) {
        Some(metric) if *key == THROUGHPUT => format!("{}\n", plain(&metric.unit)),
        _ => (*heading).into(),
    };
    table.set_header(std::iter::once(String::new()).chain(columns.iter().map(heading)));
    for (name, v, scenario) in &rows {
        let cells = columns.iter().map(|(_, key)| {
            let cell = value(v, key, *scenario);
            let spread = cell.as_ref().and_then(|cell| cell.spread).filter(|_| *key == SPREAD);
            let range = spread.map(|spread| {
                format!("\n{}..{}", format::number(spread.min), format::number(spread.max))
            });
            format::cell(cell.as_ref()) + &range.unwrap_or_default()
        });
        table.add_row(std::iter::once(name.clone()).chain(cells));
    }
    align(&mut table);
    if let Some(labels) = table.column_mut(0) {
        labels.set_constraint(ColumnConstraint::ContentWidth);
    }
    format!("{}\n{keys}", trimmed(table))
}

/// For each variant, the one with the same guest under the stock scheduler, where several policies
/// are compared.
fn references(plan: &Plan) -> Vec<Option<usize>> {
    let guests = plan.guests();
    let reference = |guest: usize| {
        let stock = |&i: &usize| plan.variants[i].policy == Policy::Eevdf;
        let same = (0..guests.len()).filter(|&i| guests[i] == guest);
        let others = !same.clone().all(|i| stock(&i));
        same.clone().find(stock).filter(|_| others)
    };
    guests.iter().map(|&guest| reference(guest)).collect()
}

/// `membench, 2026-11-20T16:00:00Z`
fn headline(s: &Summary) -> String {
    let mark = if s.complete { "" } else { " (INCOMPLETE)" };
    format!("{}{mark}, {}", plain(&s.experiment), plain(&s.started))
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

/// `A` to `Z`, then `A1` and so on.
fn letter(i: usize) -> String {
    let c = char::from(b'A' + (i % 26) as u8);
    if i < 26 { c.to_string() } else { format!("{c}{}", i / 26) }
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
