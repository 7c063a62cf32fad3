// SPDX-License-Identifier: MIT OR Apache-2.0
//! guard as a process of its own, which answers over its control socket.

use crate::process::{self, Cancel};
use crate::unit;
use anyhow::{Context as _, Result, bail};
use reprieve_guard::{Error, Statistics, control};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How long guard may take to end when nobody needs it any more.
const FAREWELL: Duration = Duration::from_secs(10);

pub struct GuardProcess {
    child: Child,
    /// Its standard error.
    said: File,
}

impl GuardProcess {
    /// Runs this program with `args`, and waits until guard schedules.
    pub fn start(args: &[&str], limit: Duration, cancel: &Cancel) -> Result<GuardProcess> {
        let said = tempfile::tempfile().context("a file for guard's messages")?;
        let mut command = own_command()?;
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.try_clone()?);
        unit::confine(&mut command)?;
        let mut guard = GuardProcess { child: process::spawn(&mut command)?, said };
        let ready = cancel.wait_until(limit, || match guard.statistics() {
            Ok(seen) if seen.dry_run => bail!("a dry run of guard runs here: end it"),
            Err(error) if matches!(error.downcast_ref(), Some(Error::NotRunning)) => Ok(false),
            answer => answer.map(|_| true),
        })?;
        if !ready {
            bail!("guard was not ready within {limit:?}: {}", guard.said());
        }
        Ok(guard)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// How it ended.
    pub fn statistics(&mut self) -> Result<Statistics> {
        if let Some(status) = self.child.try_wait()? {
            bail!("guard ended by itself ({status}): {}", self.said());
        }
        Ok(control::statistics()?)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits for its end; returns its status and its messages.
    pub fn wait(&mut self, limit: Duration, cancel: &Cancel) -> Result<(ExitStatus, String)> {
        let status = process::wait(&mut self.child, "guard", limit, cancel)?;
        Ok((status, self.said()))
    }

    /// Its messages so far.
    fn said(&mut self) -> String {
        let mut said = Vec::new();
        let _ = self.said.rewind().and_then(|()| self.said.read_to_end(&mut said));
        String::from_utf8_lossy(&said).trim().to_owned()
    }
}

impl Drop for GuardProcess {
    /// If it has to be killed, its supervisor or the kernel brings everything back.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::TERM);
            let _ = process::wait(&mut self.child, "guard", FAREWELL, &Cancel::default());
        }
        process::kill(&mut self.child);
    }
}

/// This program as a command, however it was started: in a lab host a dynamic loader runs it.
pub fn own_command() -> Result<Command> {
    let line = std::fs::read("/proc/self/cmdline").context("/proc/self/cmdline")?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|&byte| byte == 0);
    let words: Vec<&OsStr> = words.map(OsStr::from_bytes).collect();
    // The words before this program's own arguments: the program, or the loader with its
    // arguments.
    let own = words.len().saturating_sub(std::env::args_os().len().saturating_sub(1));
    let mut command = Command::new("/proc/self/exe");
    command.args(words.get(1..own).unwrap_or_default());
    Ok(command)
}
