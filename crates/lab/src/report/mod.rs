// SPDX-License-Identifier: MIT OR Apache-2.0
//! From records to tables, `summary.json` and `report.html`.
//!
//! One way in, three ways out. [`load`] reads `raw.jsonl` into a [`Run`]; [`summarize`] turns a run into a [`Summary`], the
//! documented result that every rendering starts from: text for a terminal, Markdown, `summary.json`, the table of
//! `report.html`. Only the figures of the HTML report look at single samples again.
//!
//! What is in the table is data ([`metric::metrics`]): a figure is one row there and appears everywhere. A figure that
//! was not measured is absent, never 0.

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

mod atomic;
mod format;
mod load;
pub mod metric;
mod papers;
pub mod stats;
mod summary;
mod table;

pub use load::{Callback, Cpu, Fragmentation, GracePeriod, Guest, Memory, Phase, Run, load};
pub use summary::{Cell, PaperFigure, Row, SUMMARY_SCHEMA, Summary, VariantSummary, summarize};

/// Name of the summary in a run's directory.
pub const SUMMARY_FILE: &str = "summary.json";
/// Name of the report in a run's directory.
pub const REPORT_FILE: &str = "report.html";

/// Reads `dir/raw.jsonl`, writes `dir/summary.json` and `dir/report.html`, each whole or not at all.
///
/// # Errors
/// As [`load`]; [`Error::Io`] when a file cannot be written.
pub fn write(dir: &Path) -> Result<Summary> {
    let run = load(dir)?;
    let summary = summarize(&run);
    let mut json = serde_json::to_vec_pretty(&summary)
        .map_err(|e| Error::Other(format!("cannot encode {SUMMARY_FILE}: {e}")))?;
    json.push(b'\n');
    atomic::write(&dir.join(SUMMARY_FILE), &json)?;
    Ok(summary)
}

/// The table of a comparison: one row per run and variant. `dirs` as given to [`compare`]; `width` in columns.
pub fn comparison_text(dirs: &[PathBuf], summaries: &[Summary], width: usize) -> String {
    let names = names(dirs);
    let named: Vec<(&str, &Summary)> = names.iter().map(String::as_str).zip(summaries).collect();
    table::comparison(&named, width)
}

/// The shortest of each run's path that tells the runs apart: the last component where that is enough.
fn names(dirs: &[PathBuf]) -> Vec<String> {
    let last: Vec<String> = dirs
        .iter()
        .map(|d| d.file_name().unwrap_or(d.as_os_str()).to_string_lossy().into_owned())
        .collect();
    let distinct = last.iter().collect::<std::collections::BTreeSet<_>>().len() == last.len();
    if distinct { last } else { dirs.iter().map(|d| d.display().to_string()).collect() }
}
