// SPDX-License-Identifier: MIT OR Apache-2.0
//! A result as Markdown tables: for a terminal, and for the pages below `results`.

use crate::result::{Conditions, Figure, Outcome, Unit};
use crate::subject::Class;
use crate::summary::{Line, Summary};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table whose columns behind the first `names` are figures, for a terminal of `width` columns;
/// 0: for no terminal, so that no row is broken.
fn table(titles: Vec<String>, names: usize, width: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(titles);
    if width == 0 {
        table.set_content_arrangement(ContentArrangement::Disabled);
    } else {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.clamp(60, 400) as u16);
    }
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn list<'a>(notes: impl Iterator<Item = &'a String>) -> String {
    format!(
        "\n\n{}",
        notes.map(|note| format!("- {}\n", reprieve_page::wrapped(note, "  "))).collect::<String>()
    )
}

/// Heading, table, notes.
pub fn text(outcome: &Outcome, width: usize) -> String {
    let grouped = outcome.rows.iter().any(|row| !row.group.is_empty());
    let names = if grouped { 2 } else { 1 };
    let titles = outcome.columns.iter().map(|c| heading(&c.title, c.unit));
    let titles = std::iter::repeat_n(String::new(), names).chain(titles);
    let mut table = table(titles.collect(), names, width);
    for row in &outcome.rows {
        let name = match row.class {
            Class::Reprieve => format!("**{}**", row.subject),
            _ => row.subject.clone(),
        };
        let group = grouped.then(|| row.group.clone());
        let figures = row.figures.iter().map(|f| f.as_ref().map(figure).unwrap_or_default());
        table.add_row(group.into_iter().chain([name]).chain(figures));
    }
    let notes = list(outcome.notes.iter().chain([&conditions(&outcome.conditions)]));
    format!("### `reprieve bench {}`: {}\n{table}{notes}", outcome.bench, outcome.title)
}

/// The table of all lines.
pub fn summary_text(summary: &Summary, width: usize) -> String {
    let mut table = table(CELLS.map(str::to_owned).to_vec(), 1, width);
    summary.lines.iter().for_each(|line| _ = table.add_row(cells(line)));
    let notes = list(summary.notes.iter().chain(&overall(summary)));
    format!("### `reprieve bench all`: the runtime beside the best of its peers\n{table}{notes}")
}

fn figure(f: &Figure) -> String {
    match f.rounds.len() {
        1 => number(f.value),
        _ => format!("{} ({}..{})", number(f.value), number(f.min), number(f.max)),
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.001 => format!("{value:.5}"),
        v if v < 0.01 => format!("{value:.4}"),
        v if v < 1.0 => format!("{value:.3}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        v if v < 10_000.0 => format!("{value:.0}"),
        v if v < 1e15 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(v.round() as u64))
        }
        _ => format!("{value:.2e}"),
    }
}

/// A ratio; a small one as a fraction, which is easier to read than zeroes.
fn ratio(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.01 { format!("1/{}", number(ratio.recip())) } else { number(ratio) }
}

/// A number in groups of three digits.
fn grouped(whole: u64) -> String {
    match whole / 1000 {
        0 => whole.to_string(),
        above => format!("{},{:03}", grouped(above), whole % 1000),
    }
}

fn heading(title: &str, unit: Unit) -> String {
    match unit.text() {
        "" => title.into(),
        unit => format!("{title}, {unit}"),
    }
}

/// `2 CPUs (name), Linux 6.12, ...`
fn conditions(c: &Conditions) -> String {
    format!("{}; {} rounds, {} s measured", machine(c), c.rounds, number(c.seconds))
}

fn machine(c: &Conditions) -> String {
    format!(
        "{} CPUs ({}), Linux {}, load {:.1} at the start; {}{}",
        c.cpus,
        c.cpu,
        c.kernel,
        c.load,
        c.restartable,
        if c.membarrier { "" } else { "; no membarrier: readers execute fences" }
    )
}

/// The machine, and how many targets are reached.
fn overall(summary: &Summary) -> Vec<String> {
    let ran = summary.benches.first().map(|first| {
        let seconds: f64 = summary.benches.iter().map(|o| o.conditions.seconds).sum();
        format!("{}; {} s measured", machine(&first.conditions), number(seconds))
    });
    let count = |verdict| {
        let lines = summary.lines.iter().filter(|l| !l.targets.is_empty());
        lines.filter(|l| l.reached() == verdict).count()
    };
    let unknown = match count(None) {
        0 => String::new(),
        n => format!(", {n} cannot be told"),
    };
    let targets =
        format!("targets: {} reached, {} missed{unknown}", count(Some(true)), count(Some(false)));
    ran.into_iter().chain([targets]).collect()
}

/// A line as texts: measure, figure, best peer, ratio, its spread, target, verdict.
fn cells(line: &Line) -> [String; 7] {
    let dash = || "-".to_owned();
    let peer = line.peer.as_ref();
    let targets: Vec<&str> = line.targets.iter().map(|t| t.text.as_str()).collect();
    let verdict = match line.reached() {
        Some(true) => "reached",
        Some(false) => "missed",
        None => "",
    };
    [
        line.measure.clone(),
        format!("{} {}", number(line.value), line.unit.text()),
        peer.map_or_else(dash, |p| format!("{} {}", p.subject, number(p.value))),
        peer.map_or_else(dash, |p| ratio(p.ratio)),
        peer.map_or_else(dash, |p| format!("{}..{}", ratio(p.ratio_min), ratio(p.ratio_max))),
        targets.join(", "),
        verdict.into(),
    ]
}

/// The headings of [`cells`].
const CELLS: [&str; 7] = ["", "Reprieve", "best peer", "ratio", "rounds", "target", ""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (0.00123, "0.0012"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.5, "1234"),
            (12345.6, "12,346"),
            (-1234567.0, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((ratio(0.000125), ratio(0.0125)), ("1/8000".into(), "0.013".into()));
    }
}
