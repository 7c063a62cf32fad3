// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the matrix, as Markdown.

use super::{Cell, POLICIES};
use crate::costs::Cost;
use crate::plan::Scenario;
use crate::report::stats::Distribution;
use crate::report::{Bound, DISTURBED, Summary, VariantSummary, number, with_unit};
use std::fmt::Write;

/// Rows of a run's table that are columns here.
const FIGURES: [&str; 7] = [
    "gp_mean",
    "gp_p90",
    "gp_max",
    "throughput",
    "memory_peak",
    "host_cpu_subject",
    "critical_preemptions",
];

const TITLE: &str = "Results of the lab";

const ABOUT: [&str; 5] = [
    "`reprieve lab results` made this page. The command measures missing cells and writes the page \
     again. [docs/lab.md](../docs/lab.md) explains experiments and figures.",
    "A figure is the median of the repeats, with their range in brackets. `alone` is without \
     competition, under the stock scheduler. The other rows are overcommitted. `eevdf` is the stock \
     scheduler. `eevdf-slices=0.5ms` gives all VMs slices of 0.5 ms. `full` is guard.",
    "`?`: other work took more than a tenth of the machine, so the figure decides nothing. `>=`: a \
     grace period had not ended. CPU time is of the tested VM, in % of the host's. Where the guest ran \
     out of memory, its row says in how many of the repeats.",
    "A vCPU that spins with preemption off, for the owner of a mutex or for the answer to a call, \
     goes on when another one has run. guard takes its CPU on purpose.",
    "Throughput differs by some tens of percent from one run to the next. A ratio of single repeats \
     decides nothing near its limit.",
];

/// What guard's figure is divided by.
enum Against {
    /// The stock scheduler's.
    Stock,
    /// The lesser of the stock scheduler's, with its own slices and with short ones.
    Better,
    /// The stock scheduler's without competition.
    Alone,
}

/// A limit for the ratio of guard's figure to another.
struct Target {
    heading: &'static str,
    key: &'static str,
    scenario: Scenario,
    against: Against,
    /// The limit is the least, not the most.
    least: bool,
    /// On 2 CPUs, and on more.
    limits: [f64; 2],
}

const fn at_most(
    heading: &'static str,
    key: &'static str,
    against: Against,
    limits: [f64; 2],
) -> Target {
    Target { heading, key, scenario: Scenario::Overcommit, against, least: false, limits }
}

const fn throughput(heading: &'static str, scenario: Scenario, limit: f64) -> Target {
    let (key, against) = ("throughput", Against::Stock);
    Target { heading, key, scenario, against, least: true, limits: [limit, limit] }
}

const TARGETS: [Target; 7] = [
    throughput("throughput alone / eevdf's", Scenario::Baseline, 0.97),
    throughput("throughput / eevdf's", Scenario::Overcommit, 0.97),
    at_most("GP mean / the better one's", "gp_mean", Against::Better, [1.0, 1.0]),
    at_most("GP p90 / the better one's", "gp_p90", Against::Better, [1.0, 1.0]),
    at_most("GP max / the better one's", "gp_max", Against::Better, [0.7, 0.7]),
    at_most(
        "critical-section preemptions / eevdf's",
        "critical_preemptions",
        Against::Stock,
        [0.05, 0.1],
    ),
    at_most(
        "the same, of vCPUs that did not spin",
        "critical_preemptions.not_spinning",
        Against::Stock,
        [0.05, 0.1],
    ),
];

/// Experiments whose VM has little CPU time, and their own targets.
const SCARCE: [&str; 3] = ["lowweight", "crowd", "quota"];
const OF_SCARCE: [Target; 3] = [
    at_most("GP mean / alone", "gp_mean", Against::Alone, [2.0, 2.0]),
    at_most("peak memory / alone", "memory_peak", Against::Alone, [1.5, 1.5]),
    throughput("throughput / eevdf's", Scenario::Overcommit, 1.3),
];

impl Target {
    /// The ratio in `summary`, and whether it misses the limit. `None`: a figure is missing.
    fn figure(&self, cpus: u32, summary: &Summary) -> Option<String> {
        let cell = |policy, scenario| {
            let named = |other: &&VariantSummary| other.variant.policy.to_string() == policy;
            summary.variants.iter().find(named)?.row(self.key)?.cell(scenario)
        };
        let [stock, slices, full] = POLICIES;
        let against = match self.against {
            Against::Stock => cell(stock, self.scenario),
            Against::Alone => cell(stock, Scenario::Baseline),
            Against::Better => [stock, slices]
                .into_iter()
                .filter_map(|policy| cell(policy, self.scenario))
                .min_by(|one, other| one.value.total_cmp(&other.value)),
        };
        let (ratio, bound) = cell(full, self.scenario)?.over(against?)?;
        let limit = self.limits[usize::from(cpus > 2)];
        let missed = if self.least { ratio < limit } else { ratio > limit };
        let verdict = if missed { " missed" } else { "" };
        Some(format!("{}{}{verdict}", Bound::mark(bound), number(ratio)))
    }
}

struct Table {
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

fn tables(cells: &[Cell]) -> Vec<Table> {
    let measured = || cells.iter().filter_map(|cell| Some((cell, cell.summary.as_ref()?)));
    let mut names: Vec<&str> = measured().map(|(cell, _)| cell.experiment).collect();
    names.sort_unstable();
    names.dedup();
    let mut tables: Vec<Table> = names
        .into_iter()
        .map(|name| {
            let of = || measured().filter(|(cell, _)| cell.experiment == name);
            let columns = of().next().map(|(_, summary)| headings(summary)).unwrap_or_default();
            let header = ["CPUs", "vCPUs", "repeats", "scheduler"].map(String::from);
            Table {
                title: name.into(),
                header: header.into_iter().chain(columns).collect(),
                rows: of().flat_map(|(cell, summary)| rows(cell, summary)).collect(),
            }
        })
        .collect();
    let scarce = measured().filter(|(cell, _)| SCARCE.contains(&cell.experiment));
    tables.push(targets("guard beside its targets", &TARGETS, measured()));
    tables.push(targets("guard beside its targets: little CPU time", &OF_SCARCE, scarce));
    tables.push(beds(measured()));
    tables.push(open(cells));
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn headings(summary: &Summary) -> Vec<String> {
    let heading =
        |key: &&str| summary.metric(key).map_or(key.to_string(), |m| with_unit(&m.label, &m.unit));
    FIGURES.iter().map(heading).collect()
}

/// Alone under the stock scheduler, then overcommitted under each.
fn rows(cell: &Cell, summary: &Summary) -> Vec<Vec<String>> {
    let row = |mut name: String, variant: &VariantSummary, scenario| {
        let plan = &summary.plan;
        let survived =
            variant.row("survived").and_then(|row| row.cell(scenario)).map(|cell| cell.value);
        if let Some(survived) = survived.filter(|&part| part < 100.0) {
            let _ = write!(name, " (out of memory: {} %)", number(100.0 - survived));
        }
        let first = [cell.cpus, plan.subject.vcpus, plan.repeat].map(|n| n.to_string());
        let figure = |key: &&str| figure(variant, key, scenario);
        first.into_iter().chain([name]).chain(FIGURES.iter().map(figure)).collect()
    };
    let alone = summary.variants.first();
    let alone = alone.map(|variant| row("alone".into(), variant, Scenario::Baseline));
    let over = summary
        .variants
        .iter()
        .map(|variant| row(variant.variant.policy.to_string(), variant, Scenario::Overcommit));
    alone.into_iter().chain(over).collect()
}

/// `12.3 (11.0-13.9)`, with the marks of a bound and of other work.
fn figure(variant: &VariantSummary, key: &str, scenario: Scenario) -> String {
    let Some(cell) = variant.row(key).and_then(|row| row.cell(scenario)) else { return "-".into() };
    let Some(repeats) = Distribution::new(cell.repeats.iter().copied().flatten()) else {
        return "-".into();
    };
    let doubt = if cell.disturbed { DISTURBED } else { "" };
    let mut text = format!("{}{}{doubt}", Bound::mark(cell.bound), number(repeats.median()));
    if repeats.count() > 1 {
        let _ = write!(text, " ({}-{})", number(repeats.min()), number(repeats.max()));
    }
    text
}

/// guard's figures over others, beside the targets.
fn targets<'a>(
    title: &str,
    targets: &[Target],
    cells: impl Iterator<Item = (&'a Cell, &'a Summary)>,
) -> Table {
    let row = |(cell, summary): (&Cell, &Summary)| {
        let ratio = |target: &Target| target.figure(cell.cpus, summary).unwrap_or("-".into());
        let first = [cell.cpus.to_string(), cell.experiment.into()];
        first.into_iter().chain(targets.iter().map(ratio)).collect()
    };
    let limits = |target: &Target| {
        let sign = if target.least { ">=" } else { "<=" };
        let [few, many] = target.limits;
        let limit =
            if few == many { format!("{few}") } else { format!("{few} (from 8 CPUs on {many})") };
        format!("{}, {sign} {limit}", target.heading)
    };
    let first = ["CPUs", "experiment"].map(String::from);
    let header = first.into_iter().chain(targets.iter().map(limits)).collect();
    Table { title: title.into(), header, rows: cells.map(row).collect() }
}

/// Each run's bed, and what it cost.
fn beds<'a>(measured: impl Iterator<Item = (&'a Cell, &'a Summary)>) -> Table {
    let row = |(cell, summary): (&Cell, &Summary)| {
        let costs = summary.costs.clone().unwrap_or_default();
        let us = |cost: &Cost| cost.measured.map_or("-".into(), |m| number(m.ns as f64 / 1e3));
        let ms = |ns: u64| number(ns as f64 / 1e6);
        let host = &summary.host;
        let guest = summary.guests.iter().find(|guest| guest.variant.is_some());
        let what = [
            format!("{}, {} CPUs", cell.experiment, cell.cpus),
            summary.started.split('T').next().unwrap_or_default().into(),
            host.dilation.factor().to_string(),
        ];
        let versions = [
            costs.slice_ns.map_or("-".into(), ms),
            number(summary.plan.phase_ms as f64 / 1e3),
            host.kernel.clone(),
            guest.map_or("-".into(), |guest| guest.info.kernel.clone()),
            host.qemu.clone(),
        ];
        what.into_iter().chain(costs.rows().iter().map(us)).chain(versions).collect()
    };
    let header = [
        "run",
        "date",
        "dilated",
        "switch of vCPUs, us",
        "exit, us",
        "slice, ms",
        "phase, s",
        "host",
        "guest",
        "QEMU",
    ];
    Table {
        title: "Beds: what they cost, and versions".into(),
        header: header.map(String::from).into(),
        rows: measured.map(row).collect(),
    }
}

fn open(cells: &[Cell]) -> Table {
    let open = |cell: &&Cell| cell.summary.is_none();
    let mut rows: Vec<Vec<String>> = vec![];
    for cell in cells.iter().filter(open) {
        let cpus = cell.cpus.to_string();
        match rows.iter_mut().find(|row| row[0] == cpus) {
            Some(row) => row[1] += &format!(", {}", cell.experiment),
            None => rows.push(vec![cpus, cell.experiment.into()]),
        }
    }
    let header = ["CPUs", "experiments"].map(String::from);
    Table { title: "Not measured yet".into(), header: header.into(), rows }
}

pub fn markdown(cells: &[Cell]) -> String {
    let safe = |text: &str| reprieve_page::plain(text).replace('|', "\\|").replace('<', "&lt;");
    let line = |cells: &[String]| {
        cells.iter().fold("|".to_string(), |line, cell| line + " " + &safe(cell) + " |") + "\n"
    };
    let mut out = format!("<!-- SPDX-License-Identifier: MIT OR Apache-2.0 -->\n# {TITLE}\n");
    for paragraph in ABOUT {
        let _ = write!(out, "\n{}\n", reprieve_page::wrapped(paragraph, ""));
    }
    for Table { title, header, rows } in tables(cells) {
        let _ = write!(out, "\n## {}\n\n{}", safe(&title), line(&header));
        out += &format!("|{}\n", "---|".repeat(header.len()));
        out.extend(rows.iter().map(|row| line(row)));
    }
    out
}
