// SPDX-License-Identifier: MIT OR Apache-2.0
//! Things that VMs and guards could leave behind: processes, eBPF objects, pins, files, a
//! scheduler.

use crate::check::bpf_objects::{self, Object};
use crate::check::guard::STATE;
use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::fs;

/// Things that were there before, and what was made since.
pub struct LeftBehind {
    files: BTreeSet<String>,
    /// eBPF objects of the guards.
    made: BTreeSet<Object>,
}

impl LeftBehind {
    /// From now on, processes whose parents die become children of this one.
    pub fn from_now() -> Result<LeftBehind> {
        // SAFETY: passes no pointer.
        if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } != 0 {
            return Err(std::io::Error::last_os_error()).context("becoming a subreaper");
        }
        Ok(LeftBehind { files: files(), made: BTreeSet::new() })
    }

    /// Notes the eBPF objects of the process `pid`.
    pub fn note(&mut self, pid: u32) -> Result<()> {
        let (_, objects) = bpf_objects::held_by(&pid.to_string()).context("guard's descriptors")?;
        self.made.extend(objects);
        Ok(())
    }

    /// How many eBPF objects were made.
    pub fn made(&self) -> usize {
        self.made.len()
    }

    /// Things that are left, now that no VM and no guard should be there.
    pub fn now(&self) -> Result<Vec<String>> {
        reap();
        let mut left = children()?;
        left.extend(files().difference(&self.files).cloned());
        let all = bpf_objects::all()?;
        left.extend(self.made.intersection(&all).map(|(kind, id)| format!("eBPF {kind} {id}")));
        let state = fs::read_to_string(STATE).unwrap_or_default();
        if state.trim() != "disabled" {
            left.push(format!("sched_ext is {}", state.trim()));
        }
        Ok(left)
    }
}

/// Files of this project's in all places where it has some.
fn files() -> BTreeSet<String> {
    let journals = fs::read_dir("/run/reprieve").into_iter().flatten().flatten();
    let journals = journals.map(|entry| entry.path().display().to_string());
    bpf_objects::files().into_iter().chain(journals).collect()
}

/// Takes the exit status of children that this process did not start.
fn reap() {
    // SAFETY: no status is asked for. Nobody waits for a child at this time.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// The children of this process, with what they run.
fn children() -> Result<Vec<String>> {
    let own = std::process::id().to_string();
    let mut all = vec![];
    for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let field = |name| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim())
        };
        if field("PPid:") == Some(own.as_str()) {
            let (pid, name) = (field("Pid:").unwrap_or("?"), field("Name:").unwrap_or("?"));
            all.push(format!("process {pid} ({name})"));
        }
    }
    Ok(all)
}
