// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a run fails.

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options make no sense: exit status 2.
    #[error("{0}")]
    Usage(String),
    /// The user ended the run (Ctrl-C).
    #[error("interrupted")]
    Cancelled,
    /// A reader saw memory that had been freed, or a subject kept memory for ever: its figures mean
    /// nothing.
    #[error("{subject}: {what}; its figures mean nothing")]
    Broken {
        /// The subject's name.
        subject: String,
        /// The value that was seen.
        what: String,
    },
    /// The system has no thread left.
    #[error(
        "starting thread {number} of {of}: {source}; raise the limit (ulimit -u, pids.max), or ask for fewer"
    )]
    Thread {
        /// Its number, from 1 on.
        number: usize,
        /// How many were wanted.
        of: usize,
        /// Why.
        source: std::io::Error,
    },
    /// The runtime could not do what a benchmark needs.
    #[error(transparent)]
    Runtime(#[from] reprieve::Error),
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
