// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the lab, each with a remedy where there is one.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The message of a kernel that kills a process, or itself, for lack of memory.
pub const OUT_OF_MEMORY: &str = "Out of memory";

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The user asked for something that cannot be; exit status 2.
    #[error("{0}")]
    Usage(String),
    /// A file or program that is not there; `remedy` is an imperative sentence.
    #[error("{thing} is missing: {remedy}")]
    Missing { thing: String, remedy: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A program that the lab ran failed; `detail` is the end of its output.
    #[error("{program} failed ({status}): {detail}")]
    Program { program: String, status: String, detail: String },
    #[error("{what} took longer than {} s{}", after.as_secs(), log_hint(log))]
    Timeout { what: String, after: Duration, log: Option<PathBuf> },
    /// A VM ended, its connections broke, or its load ended, while it was needed. Under TCG that
    /// happens now and then; see [`Error::is_crash`]. `detail`: lines of its logs.
    #[error("VM {vm}: {message}{}{}", log_hint(log), indented(detail))]
    Died { vm: String, message: String, detail: String, log: Option<PathBuf> },
    /// A VM misbehaved, or reported that it cannot execute a command.
    #[error("VM {vm}: {message}{}{}", log_hint(log), indented(detail))]
    Guest { vm: String, message: String, detail: String, log: Option<PathBuf> },
    /// The reason of a run in a lab host that ended because a VM died there for the last time.
    #[error("{0}")]
    GuestsDied(String),
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

    /// Whether a second try may succeed: a VM died or hung.
    pub fn is_crash(&self) -> bool {
        matches!(self, Error::Died { .. } | Error::Timeout { .. })
    }

    /// Whether another experiment may succeed.
    pub fn ends_one_experiment(&self) -> bool {
        self.is_crash() || matches!(self, Error::GuestsDied(_))
    }

    /// The error of a VM that is of no use any more.
    pub fn into_death(self) -> Error {
        match self {
            Error::Guest { vm, message, detail, log } => Error::Died { vm, message, detail, log },
            other => other,
        }
    }

    /// Whether the VM died because it had no memory left: its console's line that says so.
    pub fn out_of_memory(&self) -> Option<&str> {
        let (Error::Died { detail, .. } | Error::Guest { detail, .. }) = self else { return None };
        // The panic, if there is one, else the process that was killed.
        let line = |part: &str| detail.lines().find(|line| line.contains(part));
        line("System is deadlocked on memory").or_else(|| line(OUT_OF_MEMORY))
    }

    /// The log that the message names.
    pub fn log(&self) -> Option<&Path> {
        match self {
            Error::Died { log, .. } | Error::Guest { log, .. } | Error::Timeout { log, .. } => {
                log.as_deref()
            }
            _ => None,
        }
    }

    /// The error in one line, without details.
    pub fn brief(&self) -> String {
        let text = self.to_string();
        text.lines().next().unwrap_or_default().to_string()
    }

    /// For an error whose log is not kept.
    pub fn without_log(mut self) -> Error {
        if let Error::Died { log, .. } | Error::Guest { log, .. } | Error::Timeout { log, .. } =
            &mut self
        {
            *log = None;
        }
        self
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_memory_says_so_in_its_last_lines() {
        let panic = "[   3.1] Kernel panic - not syncing: System is deadlocked on memory";
        let died = |detail: &str| Error::Died {
            vm: "asym".into(),
            message: "the guest closed the connection".into(),
            detail: detail.into(),
            log: None,
        };
        let killer = "[   3.0] Out of memory and no killable processes...";
        assert_eq!(died(&format!("{killer}\n{panic}\n")).out_of_memory(), Some(panic));
        assert_eq!(died(killer).out_of_memory(), Some(killer));
        assert_eq!(died("Oops: 0000 [#1] SMP\n").out_of_memory(), None);
        assert_eq!(Error::Cancelled.out_of_memory(), None);
    }

    #[test]
    fn a_guest_of_no_use_is_tried_again() {
        let (message, detail) = ("bursty 3 ended with status 137".to_string(), String::new());
        let error = Error::Guest { vm: "bursty1".into(), message, detail, log: None };
        assert!(!error.is_crash());
        let dead = error.into_death();
        assert!(dead.is_crash() && dead.to_string().contains("bursty 3"), "{dead}");
        assert!(!Error::Cancelled.into_death().is_crash());
    }
}
