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
use journal::{Restored, Turn};
use reprieve_watch::publish::make_directory;
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
    // Elsewhere, the journal of a guard that runs would look like that of a dead one.
    sees_host_processes()?;
    let failed = |doing: &'static str| {
        move |source| Error::Io { what: format!("{doing} in {}", directory.display()), source }
    };
    make_directory(directory).map_err(failed("keeping a journal"))?;
    let restoring = "restoring what a dead guard left";
    let _turn = Turn::take(directory).map_err(failed(restoring))?;
    let left = restore_all(directory).map_err(failed(restoring))?;
    if let Some(what) = left.failed.first() {
        return Err(failed(restoring)(io::Error::other(what.clone())));
    }
    if let Some(pid) = left.active.first() {
        let why = format!("guard runs already, as process {pid}: stop that one");
        return Err(Error::Unsupported { why });
    }
    let starting = "starting the supervisor (run it as root), whose journal is";
    Supervisor::start(directory).map_err(failed(starting))
}

/// Undoes what dead guards left, by the journals in `directory`, and removes these.
///
/// # Errors
/// In another PID namespace than the host's, or if journals cannot be read or removed.
pub fn restore(directory: &Path) -> Result<Restored, Error> {
    sees_host_processes()?;
    let io = |source| Error::Io { what: format!("journals in {}", directory.display()), source };
    let _turn = match Turn::take(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        turn => Some(turn.map_err(io)?),
    };
    restore_all(directory).map_err(io)
}

/// A guard that is at work keeps its slices.
fn restore_all(directory: &Path) -> io::Result<Restored> {
    let mut restored = journal::restore(directory)?;
    if restored.active.is_empty() {
        restored.threads = slice::restore_all(slice::SHORT)?;
    }
    Ok(restored)
}
