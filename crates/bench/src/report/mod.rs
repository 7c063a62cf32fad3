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

/// In groups of three digits.
fn grouped(whole: u64) -> String {
    match whole / 1000 {
        0 => whole.to_string(),
        above => format!("{},{:03}", grouped(above), whole % 1000),
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
            (12345.6, "12,346"),
            (-1234567.0, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
