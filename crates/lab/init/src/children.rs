// SPDX-License-Identifier: MIT OR Apache-2.0
//! Child processes of process 1.
//!
//! Every orphan of the system becomes init's child. So one thread waits for all children, reaps
//! them, and keeps the status of those that were started here. No other code may wait for a child
//! ([`std::process::Child::wait`] would race with this thread).
//!
//! The thread reaps only under the table's lock. Starting a process takes the lock too, because a
//! start that fails waits for its own child. Signalling takes it because an id cannot be reused as
//! long as its process is not reaped.

use crate::sys::{self, Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

struct Table {
    /// The processes started here; `None` while one runs.
    status: Mutex<HashMap<i32, Option<i32>>>,
    changed: Condvar,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| Table { status: Mutex::default(), changed: Condvar::new() })
}

/// Starts the reaping thread. Once, at boot.
pub fn start_reaper() -> Result<()> {
    let run = || loop {
        let Some(pid) = sys::wait_for_dead_child() else {
            // No child is there now; a later one may come.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let mut status = table().status.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(code) = sys::reap(pid) {
            if let Some(slot) = status.get_mut(&pid) {
                *slot = Some(code);
                table().changed.notify_all();
            }
        }
    };
    std::thread::Builder::new()
        .name("reaper".into())
        .stack_size(64 << 10)
        .spawn(run)
        .map(drop)
        .context("starting the reaper thread")
}

/// A process started here, in a process group of its own; killed and forgotten when dropped.
pub struct Process {
    pid: i32,
    /// The caller may take its pipes.
    pub child: Child,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut status = table().status.lock().unwrap_or_else(|e| e.into_inner());
        let child = command.process_group(0).spawn().context(format_args!("starting {program}"))?;
        let pid = child.id() as i32;
        status.insert(pid, None);
        Ok(Process { pid, child })
    }

    /// Its exit status (or 128 + signal) if it has ended.
    pub fn status(&self) -> Option<i32> {
        table().status.lock().unwrap_or_else(|e| e.into_inner()).get(&self.pid).copied().flatten()
    }

    /// Waits for its end, at most `limit`.
    pub fn wait(&self, limit: Duration) -> Option<i32> {
        let deadline = Instant::now() + limit;
        let mut status = table().status.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(code) = status.get(&self.pid).copied().flatten() {
                return Some(code);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            status =
                table().changed.wait_timeout(status, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Signals its process group, if it has not ended.
    pub fn signal(&self, signal: Signal) {
        let status = table().status.lock().unwrap_or_else(|e| e.into_inner());
        if status.get(&self.pid).is_some_and(Option::is_none) {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status().is_none() {
            self.signal(Signal::KILL);
            self.wait(Duration::from_secs(10));
        }
        table().status.lock().unwrap_or_else(|e| e.into_inner()).remove(&self.pid);
    }
}
