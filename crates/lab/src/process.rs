// SPDX-License-Identifier: MIT OR Apache-2.0
//! Child processes that end with the lab, and waits with a limit.
//!
//! Every child gets its own process group (so that a terminal's Ctrl-C reaches only the lab, which
//! then ends its children in order) and the parent-death signal SIGKILL (so that none survives a
//! lab that was killed). The kernel sends that signal when the *thread* that started the child
//! exits, so that thread must live as long as the child.

use crate::error::{Error, Result};
use crate::limit::scaled;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at what is waited for.
const NAP: Duration = Duration::from_millis(50);

/// The user's request to end the run. Every wait checks it.
#[derive(Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The flag itself, for signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Sleeps for `time`, or until cancelled.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Waits for at most `limit` until that `is` so; says whether it is.
    pub fn wait_until<E: From<Error>>(
        &self,
        limit: Duration,
        mut is: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let end = Instant::now() + limit;
        while !is()? {
            if Instant::now() > end {
                return Ok(false);
            }
            self.sleep(NAP)?;
        }
        Ok(true)
    }
}

/// Starts `command` as a child that dies with the calling thread.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let parent = std::process::id();
    // SAFETY: only async-signal-safe calls (prctl, getppid, raise) between fork and exec.
    unsafe {
        command.process_group(0).pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The parent may have died before the call above.
            if libc::getppid() as u32 != parent {
                libc::raise(libc::SIGKILL);
            }
            Ok(())
        });
    }
    command.spawn().map_err(|e| {
        let program = command.get_program().to_string_lossy().into_owned();
        if e.kind() == std::io::ErrorKind::NotFound {
            Error::missing(format!("program {program}"), "run `make setup`")
        } else {
            Error::Program { program, status: "not started".into(), detail: e.to_string() }
        }
    })
}

/// Runs `command` to its end, within `limit` on an ordinary machine ([`scaled`]), and returns its
/// standard output; fails with the end of its standard error.
pub fn run(command: &mut Command, limit: Duration, cancel: &Cancel) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child =
        spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = wait(&mut child, &program, scaled(limit), cancel)?;
    let out = out.join().unwrap_or_default();
    let err = err.join().unwrap_or_default();
    if status.success() {
        return Ok(out);
    }
    let text = if err.is_empty() { &out } else { &err };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let detail = lines[lines.len().saturating_sub(12)..].join("\n");
    Err(Error::Program { program, status: status.to_string(), detail })
}

/// Waits for `child`, killing its process group when `limit` has passed or the run is cancelled.
pub fn wait(child: &mut Child, what: &str, limit: Duration, cancel: &Cancel) -> Result<ExitStatus> {
    let start = Instant::now();
    let mut nap = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().map_err(Error::io(what))? {
            return Ok(status);
        }
        let over = start.elapsed() > limit;
        if over || cancel.is_set() {
            kill(child);
            return Err(if over {
                Error::Timeout { what: what.into(), after: limit, log: None }
            } else {
                Error::Cancelled
            });
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(NAP);
    }
}

/// Kills `child` with its process group and reaps it.
pub fn kill(child: &mut Child) {
    // The process group of a child that is reaped may be another's by now.
    let alive = matches!(child.try_wait(), Ok(None));
    if let Some(group) = Pid::from_raw(child.id() as i32).filter(|_| alive) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut buf = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut buf);
        }
        buf
    })
}
