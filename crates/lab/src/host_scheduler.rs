// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts the lab's policies into force: by `reprieve guard` as a child on the host where the VMs
//! run, or, for fixed slices, by the system call that an administrator would use.

use crate::policy::{Need, Policy};
use crate::process::{self, Cancel};
use crate::scheduler::{InForce, Scheduler, Target};
use reprieve_guard::undo::slice;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of looks whether the run was cancelled.
const POLL: Duration = Duration::from_millis(50);

/// How long guard may take to end when the phase has failed.
const FAREWELL: Duration = Duration::from_secs(10);

pub struct HostScheduler;

impl Scheduler for HostScheduler {
    fn check(&self, policy: &Policy) -> Result<(), String> {
        no_scheduler()?;
        match policy.need() {
            Need::Nothing => Ok(()),
            Need::CustomSlices => slice::supported(),
            Need::SchedExt if Path::new(SCHED_EXT).exists() => Ok(()),
            Need::SchedExt => {
                let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
                Err(format!(
                    "this host's kernel ({}) has no sched_ext (CONFIG_SCHED_CLASS_EXT): use --host nested, or the policies eevdf and eevdf-slices",
                    release.unwrap_or_default().trim()
                ))
            }
        }
    }

    fn apply(
        &self,
        policy: &Policy,
        target: Target,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Box<dyn InForce>, String> {
        // Another one may have come since the last phase.
        no_scheduler()?;
        let child = |args: &[&str]| -> Result<Box<dyn InForce>, String> {
            Ok(Box::new(GuardChild::start(args, target.vcpus, limit, cancel)?))
        };
        match policy {
            Policy::Eevdf => Ok(Box::new(FixedSlices::default())),
            Policy::Slices(slice) => {
                let all = [target.vcpus, target.others].concat();
                Ok(Box::new(FixedSlices::set(&all, *slice)?))
            }
            Policy::Guard(name) => child(&["--policy", name]),
        }
    }
}

const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// Whether the stock scheduler is in charge.
fn no_scheduler() -> Result<(), String> {
    no_scheduler_in(Path::new(SCHED_EXT))
}

fn no_scheduler_in(sched_ext: &Path) -> Result<(), String> {
    let read = |name| std::fs::read_to_string(sched_ext.join(name)).unwrap_or_default();
    match read("state").trim() {
        "" | "disabled" => Ok(()),
        state => Err(format!(
            "a sched_ext scheduler is {state} ({}), which figures would be of: stop it",
            read("root/ops").trim()
        )),
    }
}

/// Slices of the VMs' vCPUs, as they were before.
#[derive(Default)]
struct FixedSlices(Vec<(u32, Duration)>);

impl FixedSlices {
    fn set(threads: &[u32], slice: Duration) -> Result<FixedSlices, String> {
        let failed = |tid: u32| move |error| format!("the slice of vCPU thread {tid}: {error}");
        let mut set = FixedSlices::default();
        for &tid in threads {
            set.0.push((tid, slice::get(tid).map_err(failed(tid))?));
            slice::set(tid, Some(slice)).map_err(failed(tid))?;
            let got = slice::get(tid).map_err(failed(tid))?;
            if got != slice {
                return Err(format!(
                    "vCPU thread {tid} has a slice of {got:?} instead of {slice:?}"
                ));
            }
        }
        Ok(set)
    }
}

impl InForce for FixedSlices {
    fn report(&mut self) -> Result<Option<Value>, String> {
        no_scheduler().map_err(|why| format!("at the end of the phase, {why}")).map(|()| None)
    }

    fn end(mut self: Box<Self>, _: Duration) -> Result<(), String> {
        for (tid, before) in std::mem::take(&mut self.0) {
            let restored = slice::set(tid, None).and_then(|()| slice::get(tid));
            let failed = |error| format!("the slice of vCPU thread {tid} is not restored: {error}");
            let now = restored.map_err(failed)?;
            if now != before {
                return Err(failed(std::io::Error::other(format!("it is {now:?}"))));
            }
        }
        Ok(())
    }
}

impl Drop for FixedSlices {
    fn drop(&mut self) {
        for (tid, _) in &self.0 {
            // The VM may be gone.
            let _ = slice::set(*tid, None);
        }
    }
}

/// A running `reprieve guard --json`.
struct GuardChild {
    child: Child,
    output: Option<JoinHandle<()>>,
    errors: Option<JoinHandle<String>>,
    /// Its last statistics.
    last: Arc<Mutex<Option<Value>>>,
    /// The tested guest's vCPUs with the slices that they had before.
    slices: Vec<(u32, Duration)>,
}

impl GuardChild {
    fn start(
        args: &[&str],
        vcpus: &[u32],
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<GuardChild, String> {
        // A kernel without slices reports none.
        let slices = vcpus.iter().filter_map(|&tid| Some((tid, slice::get(tid).ok()?))).collect();
        let mut command = own_command()?;
        command.arg("guard").args(args).arg("--json");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::unit::confine(&mut command).map_err(|error| format!("{error:#}"))?;
        let mut child = process::spawn(&mut command).map_err(|error| error.to_string())?;
        let last = Arc::new(Mutex::new(None));
        let (ready, is_ready) = channel();
        let output = child.stdout.take().map(|out| {
            let last = last.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
                    match value["event"].as_str() {
                        Some("ready") => drop(ready.send(())),
                        Some("statistics") => {
                            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
                        }
                        _ => {}
                    }
                }
            })
        });
        let errors = child.stderr.take().map(|mut err| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = err.read_to_end(&mut text);
                String::from_utf8_lossy(&text).trim().to_owned()
            })
        });
        let mut guard = GuardChild { child, output, errors, last, slices };
        guard.await_ready(&is_ready, limit, cancel)?;
        Ok(guard)
    }

    fn await_ready(
        &mut self,
        ready: &Receiver<()>,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<(), String> {
        let end = Instant::now() + limit;
        loop {
            match ready.recv_timeout(POLL) {
                Ok(()) => return Ok(()),
                // Its output ended.
                Err(RecvTimeoutError::Disconnected) => return Err(self.why("guard did not start")),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => {
                    return Err(self.why(&format!("guard was not ready within {limit:?}")));
                }
                Err(RecvTimeoutError::Timeout) => cancel.check().map_err(|e| e.to_string())?,
            }
        }
    }

    /// Ends the child, and adds its exit status and its messages to `what`.
    fn why(&mut self, what: &str) -> String {
        let status = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => {
                process::kill(&mut self.child);
                "stopped".into()
            }
        };
        let said = self.errors.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if said.is_empty() { format!("{what} ({status})") } else { format!("{what}: {said}") }
    }
}

impl InForce for GuardChild {
    fn report(&mut self) -> Result<Option<Value>, String> {
        if let Ok(Some(_)) = self.child.try_wait() {
            return Err(self.why("guard ended before the phase did"));
        }
        Ok(self.last.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn end(mut self: Box<Self>, limit: Duration) -> Result<(), String> {
        if let Ok(Some(_)) = self.child.try_wait() {
            return Err(self.why("guard ended before it was told to"));
        }
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let waited = process::wait(&mut self.child, "reprieve guard", limit, &Cancel::default());
        let status = waited.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(self.why("guard did not end well"));
        }
        // All that it has written is read when its output has ended.
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
        no_scheduler().map_err(|why| format!("after guard has ended, {why}"))?;
        for (tid, before) in &self.slices {
            match slice::get(*tid) {
                Ok(now) if now != *before => {
                    return Err(format!(
                        "guard left vCPU thread {tid} with a slice of {now:?} instead of {before:?}"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for GuardChild {
    /// The phase failed, or its guest died. If it has to be killed, its supervisor or the kernel
    /// brings everything back.
    fn drop(&mut self) {
        if let (Ok(None), Some(pid)) =
            (self.child.try_wait(), Pid::from_raw(self.child.id() as i32))
        {
            let _ = kill_process(pid, Signal::TERM);
            let _ = process::wait(&mut self.child, "reprieve guard", FAREWELL, &Cancel::default());
        }
        process::kill(&mut self.child);
    }
}

/// This program as a command, however it was started: in a lab host a dynamic loader runs it.
pub fn own_command() -> Result<Command, String> {
    let line =
        std::fs::read("/proc/self/cmdline").map_err(|e| format!("/proc/self/cmdline: {e}"))?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|&byte| byte == 0);
    let words: Vec<&OsStr> = words.map(OsStr::from_bytes).collect();
    // The words before this program's own arguments: the program, or the loader with its
    // arguments.
    let own = words.len().saturating_sub(std::env::args_os().len().saturating_sub(1));
    let mut command = Command::new("/proc/self/exe");
    command.args(words.get(1..own).unwrap_or_default());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stock_scheduler_is_eevdf() {
        let dir = tempfile::tempdir().unwrap();
        // A kernel without sched_ext.
        no_scheduler_in(dir.path()).unwrap();
        std::fs::write(dir.path().join("state"), "disabled\n").unwrap();
        no_scheduler_in(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        std::fs::write(dir.path().join("root/ops"), "lavd\n").unwrap();
        for state in ["enabling", "enabled", "disabling"] {
            std::fs::write(dir.path().join("state"), format!("{state}\n")).unwrap();
            let why = no_scheduler_in(dir.path()).unwrap_err();
            assert!(why.contains(state) && why.contains("lavd"), "{why}");
        }
    }
}
