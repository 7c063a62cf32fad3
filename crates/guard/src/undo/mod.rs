// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes to the kernel that stay when a backend's process dies, and how to undo them:
//! slices of threads (`slice`), and what is reserved for a scheduler of sched_ext (`server`).
//!
//! > **Invariant.** A slice that guard set can be told from all others, and a reservation is in a
//! > journal (`journal`) before it is made. The journal stays until all of it is undone: at the
//! > end, by the `supervisor` of a guard that was killed, by the next guard, or by `guard restore`.

pub mod journal;
pub mod server;
pub mod slice;
pub mod supervisor;

use crate::error::Error;
use journal::{Journal, Restored};
use reprieve_watch::sees_host_processes;
use std::io;
use std::path::Path;
use supervisor::Supervisor;

/// Undoes what dead guards left, and starts the supervisor of this one, with its journal in
/// `directory`. To be called before this process starts threads.
///
/// # Errors
/// Where another guard is at work, in another PID namespace than the host's, without the rights,
/// or in a process that has more than one thread already.
pub fn begin(directory: &Path) -> Result<Supervisor, Error> {
    let failed = |doing: &'static str| {
        move |source| Error::Io { what: format!("{doing} in {}", directory.display()), source }
    };
    let journal = take(directory)?.map_err(|pid| Error::Unsupported {
        why: format!("guard runs already, as process {pid}: stop that one"),
    })?;
    if let Some(what) = journal.undo().failed.pop() {
        return Err(failed("restoring what a dead guard left")(io::Error::other(what)));
    }
    let starting = "starting the supervisor (run it as root), whose journal is";
    Supervisor::start(journal).map_err(failed(starting))
}

/// Undoes what a dead guard left, by its journal in `directory`, and removes that. A guard that is
/// at work keeps what it has changed.
///
/// # Errors
/// In another PID namespace than the host's, or if the journal cannot be kept.
pub fn restore(directory: &Path) -> Result<Restored, Error> {
    Ok(match take(directory)? {
        Ok(journal) => journal.end(),
        Err(pid) => Restored { active: Some(pid), ..Restored::default() },
    })
}

fn take(directory: &Path) -> Result<Result<Journal, u32>, Error> {
    // Elsewhere, threads of the host's are out of sight.
    sees_host_processes()?;
    let what = || format!("keeping a journal in {}", directory.display());
    Journal::take(directory).map_err(|source| Error::Io { what: what(), source })
}
