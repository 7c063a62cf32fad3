// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why guard cannot schedule, or no longer does.

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("guard needs {what}: {hint}")]
    Missing { what: &'static str, hint: &'static str },
    #[error("guard cannot work here: {why}")]
    Unsupported { why: String },
    #[error("{what}: {why}")]
    Option { what: &'static str, why: &'static str },
    #[error("the stock scheduler is back: {0}")]
    Ended(String),
    #[error("guard does not run here with --backend sched-ext: start `reprieve guard` first")]
    NotRunning,
    #[error("guard knows no VM with the name or process ID {asked:?} yet; there are {there}")]
    NoVm { asked: String, there: String },
    #[error(
        "this is a dry run, with the policy that it was started with: start it again with another --policy"
    )]
    DryRun,
    #[error("guard refuses: {0}")]
    Refused(String),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(transparent)]
    Watch(#[from] reprieve_watch::Error),
}
