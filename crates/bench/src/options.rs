// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's choices for a run.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Another process beside which `grace` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    None,
    /// A process with a thread per CPU, all of which do nothing but membarriers.
    Membarrier,
    /// The same with many threads, in a cgroup that has hardly any CPU time.
    Throttled,
}

impl Neighbour {
    /// All, in the order of the tables.
    pub const ALL: [Neighbour; 3] = [Neighbour::None, Neighbour::Membarrier, Neighbour::Throttled];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Neighbour::None => "none",
            Neighbour::Membarrier => "membarrier",
            Neighbour::Throttled => "throttled",
        }
    }
}

/// How to run a benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Peers, of [`FAMILIES`](crate::FAMILIES).
    pub against: Vec<String>,
    /// Measured time of the whole run; warming up and cleaning up come on top of it.
    pub length: Duration,
    /// Rounds over all subjects.
    pub rounds: usize,
    /// Numbers of reader threads.
    pub readers: Vec<usize>,
    /// In `grace`: what else runs.
    pub neighbours: Vec<Neighbour>,
    /// The caller sets it to end the run early.
    pub cancel: Arc<AtomicBool>,
}

impl Options {
    /// Ends the run when the user wants it to end.
    pub(crate) fn check(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// For tests: nothing is chosen but the length and the rounds.
    #[cfg(test)]
    pub(crate) fn plain(length: Duration, rounds: usize) -> Options {
        Options {
            against: vec![],
            length,
            rounds,
            readers: vec![],
            neighbours: vec![],
            cancel: Default::default(),
        }
    }
}
