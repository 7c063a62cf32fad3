// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes to the kernel that stay when a backend's process dies, and how to undo them:
//! slices of threads (`slice`), and what is reserved for a scheduler of sched_ext (`server`).
//!
//! > **Invariant.** A slice and a reservation that guard set can be told from all others, by a
//! > number that nobody else chooses. They are undone at the end, by the `supervisor` of a guard
//! > that was killed, by the next guard, or by `guard restore`: whoever has the `lock`.

pub mod lock;
pub mod server;
pub mod slice;
pub mod supervisor;

use crate::error::Error;
use lock::{Lock, Restored};
use reprieve_watch::sees_host_processes;
use std::io;
use std::path::Path;
use supervisor::Supervisor;

/// The directory of guard's lock, and of the socket where it is asked.
pub(crate) const DIRECTORY: &str = "/run/reprieve";

/// Undoes what dead guards left, takes the lock, and starts the supervisor of this guard. To be
/// called before this process starts threads.
///
/// # Errors
/// Where another guard is at work, in another PID namespace than the host's, without the rights,
/// or in a process that has more than one thread already.
pub fn begin() -> Result<Supervisor, Error> {
    let failed = |doing: &'static str| {
        move |source| Error::Io { what: format!("{doing} in {DIRECTORY}"), source }
    };
    let lock = take()?.map_err(|pid| Error::Unsupported {
        why: format!("guard runs already, as process {pid}: stop that one"),
    })?;
    if let Some(what) = lock.undo().failed.pop() {
        return Err(failed("restoring what a dead guard left")(io::Error::other(what)));
    }
    let starting = "starting the supervisor (run it as root), whose lock is";
    Supervisor::start(lock).map_err(failed(starting))
}

/// Undoes what a dead guard left. A guard that is at work keeps what it has changed.
///
/// # Errors
/// In another PID namespace than the host's, or if the lock cannot be taken.
pub fn restore() -> Result<Restored, Error> {
    Ok(match take()? {
        Ok(lock) => lock.end(),
        Err(pid) => Restored { active: Some(pid), ..Restored::default() },
    })
}

fn take() -> Result<Result<Lock, u32>, Error> {
    // Elsewhere, threads of the host's are out of sight.
    sees_host_processes()?;
    let what = || format!("taking the lock in {DIRECTORY}");
    Lock::take(Path::new(DIRECTORY)).map_err(|source| Error::Io { what: what(), source })
}
