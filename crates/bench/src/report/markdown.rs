// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables as Markdown, as docs have them.

use super::{CELLS, cells, conditions, heading, number, overall};
use crate::result::{Figure, Outcome};
use crate::subject::Class;
use crate::summary::Summary;

/// Heading, table, notes.
pub fn markdown(outcome: &Outcome) -> String {
    let grouped = outcome.rows.iter().any(|row| !row.group.is_empty());
    let names = if grouped { 2 } else { 1 };
    let titles = outcome.columns.iter().map(|c| heading(&c.title, c.unit));
    let mut out = format!("### `reprieve bench {}`: {}\n", outcome.bench, outcome.title);
    out += &table(std::iter::repeat_n(String::new(), names).chain(titles).collect());
    for row in &outcome.rows {
        let name = match row.class {
            Class::Reprieve => format!("**{}**", row.subject),
            _ => row.subject.clone(),
        };
        let group = grouped.then(|| row.group.clone());
        let figures = row.figures.iter().map(|f| f.as_ref().map(figure).unwrap_or_default());
        out += &line(group.into_iter().chain([name]).chain(figures));
    }
    out += "\n";
    for note in outcome.notes.iter().chain([&conditions(&outcome.conditions)]) {
        out += &format!("- {note}\n");
    }
    out
}

/// The summary, then each benchmark.
pub fn summary_markdown(summary: &Summary) -> String {
    let mut out = "### `reprieve bench all`: the runtime beside the best of its peers\n".to_owned();
    out += &table(CELLS.map(str::to_owned).to_vec());
    out += &summary.lines.iter().map(|l| line(cells(l))).collect::<String>();
    out += "\n";
    for note in summary.notes.iter().chain(&overall(summary)) {
        out += &format!("- {note}\n");
    }
    for outcome in &summary.benches {
        out += &format!("\n{}", markdown(outcome));
    }
    out
}

fn table(titles: Vec<String>) -> String {
    let rule = format!("|{}\n", "---|".repeat(titles.len()));
    line(titles) + &rule
}

fn line(cells: impl IntoIterator<Item = String>) -> String {
    // No cell ends itself or begins an element.
    let escaped = |cell: String| cell.replace('|', "\\|").replace('<', "&lt;");
    cells.into_iter().fold("|".to_owned(), |line, cell| format!("{line} {} |", escaped(cell)))
        + "\n"
}

fn figure(f: &Figure) -> String {
    match f.rounds.len() {
        1 => number(f.value),
        _ => format!("{} ({}..{})", number(f.value), number(f.min), number(f.max)),
    }
}
