// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong in the lab, each with what to do about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user asked for something that cannot be; exit status 2.
    #[error("{0}")]
    Usage(String),
    /// Something is not there; `remedy` is an imperative sentence.
    #[error("{thing} is missing: {remedy}")]
    Missing { thing: String, remedy: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A program that the lab runs failed; `detail` is the end of what it said.
    #[error("{program} failed ({status}): {detail}")]
    Program { program: String, status: String, detail: String },
    #[error("{what} took longer than {} s{}", after.as_secs(), log_hint(log))]
    Timeout { what: String, after: Duration, log: Option<PathBuf> },
    /// A VM ended, or its connections broke, while it was needed. Under TCG that happens now and then; see [`Error::is_crash`].
    /// `detail`: what its logs tell, in lines.
    #[error("VM {vm}: {message}{}{}", log_hint(log), indented(detail))]
    Died { vm: String, message: String, detail: String, log: Option<PathBuf> },
    /// A VM misbehaved or said that it cannot do what it was asked.
    #[error("VM {vm}: {message}{}{}", log_hint(log), indented(detail))]
    Guest { vm: String, message: String, detail: String, log: Option<PathBuf> },
    /// Results or images that cannot be read.
    #[error("{}: {message}", path.display())]
    Format { path: PathBuf, message: String },
    #[error("interrupted")]
    Cancelled,
    #[error("{0}")]
    Other(String),
}

impl Error {
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, source }
    }

    /// Whether trying the same again may help: a VM died or hung.
    pub fn is_crash(&self) -> bool {
        matches!(self, Error::Died { .. } | Error::Timeout { .. })
    }

    /// The error in one line, without details.
    pub fn brief(&self) -> String {
        let text = self.to_string();
        text.lines().next().unwrap_or_default().to_string()
    }

    pub fn missing(thing: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Missing { thing: thing.into(), remedy: remedy.into() }
    }
}

fn indented(detail: &str) -> String {
    detail.lines().map(|line| format!("\n    {line}")).collect()
}

fn log_hint(log: &Option<PathBuf>) -> String {
    log.as_ref().map(|p| format!(" (see {})", p.display())).unwrap_or_default()
}
