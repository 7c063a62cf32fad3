// SPDX-License-Identifier: MIT OR Apache-2.0
//! From records to tables and `summary.json`.
//!
//! [`load`] reads `raw.jsonl` into a [`Run`]; [`summarize`] turns a run into a [`Summary`], the
//! documented result from which every rendering starts: text for a terminal, `summary.json`, the
//! pages of `lab results`.
//!
//! The rows of the table are data ([`rows`]): a figure is one row there and appears in all
//! renderings. A figure that was not measured is absent, never 0.

use crate::error::{Error, Result};
use std::path::Path;

mod format;
mod load;
pub mod metric;
mod papers;
mod rows;
pub mod stats;
mod summary;
mod table;

pub use format::{DISTURBED, number, with_unit};
pub use load::{Guest, Phase, Run, load};
pub use papers::PaperFigure;
pub use stats::{Bound, Spread};
pub use summary::{Cell, Row, SUMMARY_SCHEMA, Summary, VariantSummary, summarize};

/// Name of the summary in a run's directory.
pub const SUMMARY_FILE: &str = "summary.json";
/// Reads `dir/raw.jsonl`, and writes `dir/summary.json`, whole or not at all.
///
/// # Errors
/// As [`load`]; [`Error::Io`] when the summary cannot be written.
pub fn write(dir: &Path) -> Result<Summary> {
    let summary = summarize(&load(dir)?);
    let mut json = serde_json::to_vec_pretty(&summary)
        .map_err(|e| Error::Other(format!("cannot encode {SUMMARY_FILE}: {e}")))?;
    json.push(b'\n');
    let path = dir.join(SUMMARY_FILE);
    reprieve_page::write(&path, &json).map_err(Error::io(&path))?;
    Ok(summary)
}
