// SPDX-License-Identifier: MIT OR Apache-2.0
//! The matrix of experiments, sizes of the host and policies, and the page about it.
//!
//! A cell is one run of an experiment on a lab host of one size, under all [`POLICIES`]. Cells are
//! independent. The summary of a finished cell is kept beside the page, in version control: several
//! machines can measure a matrix that takes hours. The page is made from the cells that are there.

mod page;

use crate::error::{Error, Result};
use crate::experiments::{self, Options, Request};
use crate::host::{Bed, MOST_AGAIN, Mode};
use crate::policy::Policy;
use crate::report::{SUMMARY_FILE, Summary};
use crate::run::{self, Around, Outcome, Settings};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The stock scheduler, the best that an administrator sets by hand, and guard.
const POLICIES: [&str; 3] = ["eevdf", "eevdf-slices=0.5ms", "full"];

/// CPUs of the lab hosts, and whether only [RP]'s experiments run there.
const SIZES: [(u32, bool); 4] = [(2, false), (8, false), (16, true), (32, true)];

/// Experiments of [RP].
const PAPER: [&str; 3] = ["postmark", "membench", "clone"];

/// From this size on a cell has one repeat, unless the user asks for more: a phase takes minutes.
const SLOW_CPUS: u32 = 16;
const REPEAT: u32 = 3;

/// The experiments to measure, and where the results are.
pub struct Matrix {
    /// Names of experiments; empty for all.
    pub experiments: Vec<String>,
    /// CPUs of lab hosts; empty for all.
    pub sizes: Vec<u32>,
    /// `None`: as suits the size.
    pub repeat: Option<u32>,
    pub phase: Option<Duration>,
    pub warmup: Option<Duration>,
    pub guest_kernel: String,
    /// Directory of the runs, with all records.
    pub runs: PathBuf,
    /// Directory of the page and of the finished cells.
    pub out: PathBuf,
    pub command: String,
}

/// An experiment on a host of one size.
pub struct Cell {
    pub experiment: &'static str,
    pub cpus: u32,
    /// `None`: not measured yet.
    pub summary: Option<Summary>,
}

/// All cells, those that are finished with their results.
pub fn cells(out: &Path) -> Vec<Cell> {
    let of_size = |(cpus, paper): (u32, bool)| {
        let names = experiments::ALL.iter().map(|experiment| experiment.name);
        let names = names.filter(move |name| !paper || PAPER.contains(name));
        names.map(move |experiment| Cell {
            experiment,
            cpus,
            summary: finished(&kept(out, experiment, cpus)),
        })
    };
    SIZES.into_iter().flat_map(of_size).collect()
}

/// The file of a finished cell.
fn kept(out: &Path, experiment: &str, cpus: u32) -> PathBuf {
    out.join("cells").join(format!("{cpus}-{experiment}.json"))
}

/// The results of a cell, if it was measured to its end.
fn finished(path: &Path) -> Option<Summary> {
    let text = fs::read(path).ok()?;
    let summary: Summary = serde_json::from_slice(&text).ok()?;
    summary.complete.then_some(summary)
}

impl Matrix {
    /// Refuses what is not in the matrix.
    ///
    /// # Errors
    /// [`Error::Usage`] with what there is.
    pub fn check(&self) -> Result<()> {
        for name in &self.experiments {
            experiments::find(name)?;
        }
        let sizes = SIZES.map(|(cpus, _)| cpus);
        match self.sizes.iter().find(|cpus| !sizes.contains(cpus)) {
            Some(other) => Err(Error::Usage(format!("--host-cpus {other}: give 2, 8, 16 or 32"))),
            None => Ok(()),
        }
    }

    /// Measures the cells that are asked for and not finished, those of a size on one lab host.
    /// `done` is called after each.
    ///
    /// # Errors
    /// The first, after all that can be measured in spite of it.
    pub fn run(&self, around: Around, done: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.check()?;
        let mut first = Ok(());
        for (cpus, _) in SIZES {
            let asked = |cell: &Cell| {
                let named = |name: &String| name == cell.experiment;
                cell.cpus == cpus
                    && cell.summary.is_none()
                    && (self.experiments.is_empty() || self.experiments.iter().any(named))
                    && (self.sizes.is_empty() || self.sizes.contains(&cpus))
            };
            let open = cells(&self.out).into_iter().filter(asked);
            let names: Vec<&str> = open.map(|cell| cell.experiment).collect();
            if names.is_empty() {
                continue;
            }
            match self.measure(&names, cpus, around, done) {
                Err(error @ Error::Usage(_)) => first = first.and(Err(error)),
                Err(error) if error.ends_one_experiment() => first = first.and(Err(error)),
                measured => measured?,
            }
        }
        first
    }

    fn measure(
        &self,
        names: &[&str],
        cpus: u32,
        around: Around,
        done: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let bed = Bed {
            mode: Mode::Nested,
            cpus: Some(cpus),
            dilate: None,
            base_slice: None,
            again: MOST_AGAIN,
            kernel: None,
        };
        let policies = POLICIES.map(str::parse).into_iter().collect::<Result<Vec<Policy>>>()?;
        let repeat = if cpus < SLOW_CPUS { REPEAT } else { 1 };
        let (machine, mut ended) = (run::machine(&bed)?, Ok(()));
        let mut requests = vec![];
        for name in names {
            let request = Request {
                experiment: name.to_string(),
                repeat: self.repeat.unwrap_or(repeat),
                guest_kernels: vec![self.guest_kernel.clone()],
                preempt: vec![None],
                guest_args: vec![String::new()],
                policies: policies.clone(),
                phase: self.phase,
                warmup: self.warmup,
                options: Options::default(),
                command: self.command.clone(),
            };
            // The machine may be too small for one experiment and not for the next.
            match request.plan(&machine) {
                Ok(_) => requests.push(request),
                Err(error) => {
                    around.progress.notice(&format!("{name} on {cpus} CPUs: {error}"));
                    ended = ended.and(Err(error));
                }
            }
        }
        if requests.is_empty() {
            return ended;
        }
        let size = self.runs.join(format!("{cpus}-cpus"));
        for request in &requests {
            // The directory's results are not complete.
            let dir = size.join(&request.experiment);
            match fs::remove_dir_all(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Io { path: dir, source: error });
                }
                _ => {}
            }
        }
        let out = match &requests[..] {
            [one] => size.join(&one.experiment),
            _ => size,
        };
        let settings = Settings { bed, out };
        let ran = run::run(&requests, &settings, around, &mut |Outcome { dir, summary }| {
            let kept = keep(&self.out, &summary.experiment, cpus, &dir.join(SUMMARY_FILE));
            let kept = kept.and_then(|()| done());
            ended = std::mem::replace(&mut ended, Ok(())).and(kept);
        });
        ran.and(ended)
    }
}

/// Keeps the summary of a run as that of a cell of the page in `out`, if the run is finished.
///
/// # Errors
/// [`Error::Io`] if the copy cannot be written.
pub fn keep(out: &Path, experiment: &str, cpus: u32, summary: &Path) -> Result<()> {
    if finished(summary).is_none() {
        return Ok(());
    }
    let kept = kept(out, experiment, cpus);
    let parent = kept.parent().unwrap_or(out);
    fs::create_dir_all(parent).map_err(Error::io(parent))?;
    fs::copy(summary, &kept).map_err(Error::io(&kept))?;
    Ok(())
}

/// Writes `lab.md` to `out`, from the cells there.
pub fn write(out: &Path) -> Result<()> {
    fs::create_dir_all(out).map_err(Error::io(out))?;
    let cells = cells(out);
    let path = out.join("lab.md");
    reprieve_page::write(&path, page::markdown(&cells).as_bytes()).map_err(Error::io(&path))
}
