// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes to the kernel that stay when a backend's process dies, and how to undo them:
//! slices of threads (`slice`), and what is reserved for a scheduler of sched_ext (`server`).
//!
//! Invariant: each change is in a journal (`journal`) before it is made, and the journal stays
//! until all of it is undone: at the end, by the `supervisor` of a guard that was killed, by the
//! next guard, or by `guard --restore`.

pub mod journal;
pub mod server;
pub mod slice;
pub mod supervisor;

use crate::error::Error;
use journal::{Before, Restored, Turn};
use reprieve_watch::publish::make_directory;
use reprieve_watch::sees_host_processes;
use std::io;
use std::path::Path;
use supervisor::Supervisor;

/// Undoes what dead guards left, and starts the supervisor of this one, with its journal in
/// `directory`. To be called before this process starts threads. Also returns the threads whose
/// slices could not be given back yet; this guard's journal has them.
///
/// # Errors
/// Where another guard is at work, in another PID namespace than the host's, without the rights,
/// or in a process that has more than one thread already.
pub fn begin(directory: &Path) -> Result<(Supervisor, Vec<Before>), Error> {
    // Elsewhere, the journal of a guard that runs would look like that of a dead one.
    sees_host_processes()?;
    let failed = |doing: &'static str| {
        move |source| Error::Io { what: format!("{doing} in {}", directory.display()), source }
    };
    make_directory(directory).map_err(failed("keeping a journal"))?;
    let restoring = "restoring what a dead guard left";
    let turn = Turn::take(directory).map_err(failed(restoring))?;
    let left = journal::restore(directory).map_err(failed(restoring))?;
    if let Some(what) = left.failed.first() {
        return Err(failed(restoring)(io::Error::other(what.clone())));
    }
    if let Some(pid) = left.active.first() {
        let why = format!("guard runs already, as process {pid}: stop that one");
        return Err(Error::Unsupported { why });
    }
    let supervisor = Supervisor::start(directory);
    drop(turn);
    let starting = "starting the supervisor (run it as root), whose journal is";
    let mut supervisor = supervisor.map_err(failed(starting))?;
    for before in &left.later {
        supervisor.note(&before.line()).map_err(failed("writing the journal"))?;
    }
    // This guard's journal has what they say. A dead guard may have had its name.
    let own = journal::path_of(directory, std::process::id());
    for journal in left.kept.into_iter().filter(|journal| *journal != own) {
        let _ = std::fs::remove_file(journal);
    }
    Ok((supervisor, left.later))
}

/// Undoes what dead guards left, by the journals in `directory`, and removes these.
///
/// # Errors
/// In another PID namespace than the host's, or if journals cannot be read or removed.
pub fn restore(directory: &Path) -> Result<Restored, Error> {
    sees_host_processes()?;
    let io = |source| Error::Io { what: format!("journals in {}", directory.display()), source };
    let _turn = match Turn::take(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Restored::default()),
        turn => turn.map_err(io)?,
    };
    journal::restore(directory).map_err(io)
}
