// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table for a terminal: a figure, its spread, its ratio to the best peer.

use super::{CELLS, cells, conditions, heading, number, overall};
use crate::result::{Figure, Outcome};
use crate::subject::Class;
use crate::summary::Summary;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};

/// For a terminal of `width` columns; 0: for no terminal, so that no line is broken.
fn empty(width: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if width == 0 {
        table.set_content_arrangement(ContentArrangement::Disabled);
    } else {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.clamp(60, 400) as u16);
    }
    table
}

/// The summary's table, for a terminal of `width` columns, or 0.
pub fn summary_text(summary: &Summary, width: usize) -> String {
    let mut table = empty(width);
    table.set_header(CELLS);
    let mut bench = "";
    for line in &summary.lines {
        if line.bench != bench {
            bench = line.bench;
            table.add_row(vec![format!("-- {bench}")]);
        }
        table.add_row(cells(line));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        if matches!(i, 1 | 3 | 4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        column.set_padding((0, 1));
    }
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    let mut out = format!("all: the runtime beside the best of its peers\n{table}\n");
    for note in summary.notes.iter().chain(&overall(summary)) {
        out += &format!("- {note}\n");
    }
    out
}

/// The table, for a terminal of `width` columns, or 0.
pub fn text(outcome: &Outcome, width: usize) -> String {
    let mut table = empty(width);
    let mut header = vec![String::new()];
    header.extend(outcome.columns.iter().map(|c| heading(&c.title, c.unit)));
    table.set_header(header);
    let (spread, place) = if width == 0 { (" ", "behind it") } else { ("\n", "below") };
    let mut group = "";
    for row in &outcome.rows {
        if row.group != group {
            group = &row.group;
            table.add_row(vec![format!("-- {group}")]);
        }
        let mark = if row.class == Class::Reprieve { "*" } else { "" };
        let mut cells = vec![format!("{}{mark}", row.subject)];
        cells.extend(
            row.figures.iter().map(|f| f.as_ref().map_or("-".into(), |f| figure(f, spread))),
        );
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_padding((1, 0));
    }
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    let mut out = format!("{}: {}\n{table}\n", outcome.bench, outcome.title);
    out += &format!(
        "* Reprieve. Each figure: median, x times the best peer's; {place}, smallest..largest round if there were several.\n"
    );
    for note in &outcome.notes {
        out += &format!("- {note}\n");
    }
    out + &format!("- {}\n", conditions(&outcome.conditions))
}

/// With `spread` between the median and the rounds.
fn figure(f: &Figure, spread: &str) -> String {
    let ratio = f.to_best_peer.map(|r| format!(" x{}", number(r))).unwrap_or_default();
    let value = format!("{}{ratio}", number(f.value));
    if f.rounds.len() == 1 {
        return value;
    }
    format!("{value}{spread}{}..{}", number(f.min), number(f.max))
}
