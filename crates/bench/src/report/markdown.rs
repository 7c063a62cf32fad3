// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables as Markdown, for results/bench.md.

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
    out + &list(outcome.notes.iter().chain([&conditions(&outcome.conditions)]))
}

/// The summary, then each benchmark.
pub fn summary_markdown(summary: &Summary) -> String {
    let mut out = "### `reprieve bench all`: the runtime beside the best of its peers\n".to_owned();
    out += &table(CELLS.map(str::to_owned).to_vec());
    out += &summary.lines.iter().map(|l| line(cells(l))).collect::<String>();
    out += &list(summary.notes.iter().chain(&overall(summary)));
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
    let cell = |cell: String| format!(" {} |", escaped(&cell).replace('|', "\\|"));
    format!("|{}\n", cells.into_iter().map(cell).collect::<String>())
}

fn list<'a>(notes: impl Iterator<Item = &'a String>) -> String {
    format!("\n{}", notes.map(|note| format!("- {}\n", escaped(note))).collect::<String>())
}

/// Text in which nothing begins an HTML element.
fn escaped(text: &str) -> String {
    let mut parts = text.split('<');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| {
        let sign = if part.starts_with(char::is_alphabetic) { "&lt;" } else { "<" };
        out + sign + part
    })
}

fn figure(f: &Figure) -> String {
    match f.rounds.len() {
        1 => number(f.value),
        _ => format!("{} ({}..{})", number(f.value), number(f.min), number(f.max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped("List<T>: <= 3 < 4"), "List&lt;T>: <= 3 < 4");
        assert_eq!(line(["a|b".into(), "<= 1".into()]), "| a\\|b | <= 1 |\n");
    }
}
