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
use std::path::{Path, PathBuf};

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
    let page = html::page(&[html::Entry { name: None, run, summary }])?;
    put(&dir.join(SUMMARY_FILE), &json)?;
    put(&dir.join(REPORT_FILE), page.as_bytes())
}

fn put(path: &Path, content: &[u8]) -> Result<()> {
    reprieve_page::write(path, content).map_err(Error::io(path))
}

/// Runs of one experiment.
pub struct Comparison {
    runs: Vec<Run>,
    names: Vec<String>,
    /// In the order of the runs.
    pub summaries: Vec<Summary>,
}

/// Reads the runs of `dirs`.
///
/// # Errors
/// [`Error::Usage`] when `dirs` is empty or the runs are of different experiments; else as
/// [`load`].
pub fn compare(dirs: &[PathBuf]) -> Result<Comparison> {
    let runs = dirs.iter().map(|dir| load(dir)).collect::<Result<Vec<_>>>()?;
    let Some(first) = runs.first() else {
        return Err(Error::Usage("nothing to compare: name at least one run's directory".into()));
    };
    for run in &runs {
        if run.plan.experiment != first.plan.experiment {
            return Err(Error::Usage(format!(
                "cannot compare {} ({}) with {} ({}): name runs of one experiment",
                first.dir.display(),
                format::plain(&first.plan.experiment),
                run.dir.display(),
                format::plain(&run.plan.experiment)
            )));
        }
    }
    let summaries = runs.iter().map(summarize).collect();
    Ok(Comparison { runs, names: names(dirs), summaries })
}

impl Comparison {
    /// The table: one row per run and variant. `width` in columns.
    pub fn text(&self, width: usize) -> String {
        let names = self.names.iter().map(String::as_str);
        let named: Vec<(&str, &Summary)> = names.zip(&self.summaries).collect();
        table::comparison(&named, width)
    }

    /// Writes the table and the figures to the HTML page `out`, whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        let entries: Vec<html::Entry> = self
            .runs
            .iter()
            .zip(&self.summaries)
            .zip(&self.names)
            .map(|((run, summary), name)| html::Entry { name: Some(name.clone()), run, summary })
            .collect();
        put(out, html::page(&entries)?.as_bytes())
    }
}

/// The shortest of each run's path that tells the runs apart: the last component where that is
/// enough.
fn names(dirs: &[PathBuf]) -> Vec<String> {
    let last: Vec<String> = dirs
        .iter()
        .map(|d| d.file_name().unwrap_or(d.as_os_str()).to_string_lossy().into_owned())
        .collect();
    let distinct = last.iter().collect::<std::collections::BTreeSet<_>>().len() == last.len();
    if distinct { last } else { dirs.iter().map(|d| d.display().to_string()).collect() }
}
