// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a result looks: a table for the terminal, a page with the table and a chart.

mod chart;
mod html;
mod text;

use crate::error::{Error, Result};
use crate::result::{Conditions, Outcome, Unit};
use std::path::Path;

pub use text::text;

/// Writes a page with the table and the chart that needs no other file. Whole or not at all.
///
/// # Errors
/// [`Error::Io`]; [`Error::Chart`].
pub fn write_html(outcome: &Outcome, path: &Path) -> Result<()> {
    let page = html::page(outcome)?;
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    let part = path.with_file_name(name);
    let written = std::fs::write(&part, page).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|source| {
        // Nothing is left if the write failed half-way.
        let _ = std::fs::remove_file(&part);
        Error::Io { path: path.to_path_buf(), source }
    })
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v == 0.0 => "0".into(),
        v if v < 0.001 => format!("{value:.5}"),
        v if v < 0.01 => format!("{value:.4}"),
        v if v < 1.0 => format!("{value:.3}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        v if v < 10_000.0 => format!("{value:.0}"),
        _ => format!(
            "{}{:03}",
            number((value / 1000.0).trunc()) + ",",
            (value % 1000.0).abs() as u64
        ),
    }
}

fn heading(title: &str, unit: Unit) -> String {
    format!("{title}, {}", unit.text())
}

/// `2 CPUs (name), Linux 6.12, ...`
fn conditions(c: &Conditions) -> String {
    format!(
        "{} CPUs ({}), Linux {}, load {:.1} at the start; {} rounds, {} s measured; {}{}",
        c.cpus,
        c.cpu,
        c.kernel,
        c.load,
        c.rounds,
        number(c.seconds),
        c.restartable,
        if c.membarrier { "" } else { "; no membarrier: readers execute fences" }
    )
}

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
            (12345.6, "12,345"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
