// SPDX-License-Identifier: MIT OR Apache-2.0
//! From records to tables, `summary.json` and `report.html`.
//!
//! [`load`] reads `raw.jsonl` into a [`Run`]; [`summarize`] turns a run
//! into a [`Summary`], the documented result that every rendering starts from: text for a terminal,
//! Markdown, `summary.json`, the table of `report.html`. Only the figures of the HTML report look
//! at single samples again.
//!
//! The rows of the table are data ([`rows`]): a figure is one row there and appears in all
//! renderings. A figure that was not measured is absent, never 0.

use crate::error::{Error, Result};
use std::path::Path;

mod brief;
mod figures;
mod format;
mod html;
mod load;
pub mod metric;
mod papers;
mod policies;
mod rows;
pub mod stats;
mod summary;
mod table;

pub use format::{DISTURBED, number, with_unit};
pub use load::{Callback, Cpu, Fragmentation, GracePeriod, Guest, Memory, Phase, Run, load};
pub use papers::PaperFigure;
pub use policies::{Ratio, ToEevdf};
pub use stats::{Bound, Spread};
pub use summary::{Cell, Row, SUMMARY_SCHEMA, Summary, VariantSummary, summarize};

/// Name of the summary in a run's directory.
pub const SUMMARY_FILE: &str = "summary.json";
/// Name of the report in a run's directory.
pub const REPORT_FILE: &str = "report.html";

/// Reads `dir/raw.jsonl`, and [`save`]s the report beside it.
///
/// # Errors
/// As [`load`] and [`save`].
pub fn write(dir: &Path) -> Result<Summary> {
    let run = load(dir)?;
    let summary = summarize(&run);
    save(&run, &summary, dir)?;
    Ok(summary)
}

/// Writes `dir/summary.json` and `dir/report.html`, each whole or not at all.
///
/// # Errors
/// [`Error::Io`] when a file cannot be written.
pub fn save(run: &Run, summary: &Summary, dir: &Path) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(summary)
        .map_err(|e| Error::Other(format!("cannot encode {SUMMARY_FILE}: {e}")))?;
    json.push(b'\n');
    let page = html::page(run, summary)?;
    put(&dir.join(SUMMARY_FILE), &json)?;
    put(&dir.join(REPORT_FILE), page.as_bytes())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    reprieve_page::write(path, content).map_err(Error::io(path))
}
