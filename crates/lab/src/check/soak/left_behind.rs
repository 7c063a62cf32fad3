// SPDX-License-Identifier: MIT OR Apache-2.0
//! Things that VMs and guards could leave behind beside files and eBPF objects: processes, a
//! scheduler.

use crate::check::guard::STATE;
use anyhow::{Context as _, Result};
use std::fs;

/// From now on, processes whose parents die become children of this one.
pub fn adopt() -> Result<()> {
    // SAFETY: passes no pointer.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()).context("becoming a subreaper"),
    }
}

/// Things that are left, now that no VM and no guard should be there.
pub fn now() -> Result<Vec<String>> {
    reap();
    let mut left = children()?;
    let state = fs::read_to_string(STATE).unwrap_or_default();
    if state.trim() != "disabled" {
        left.push(format!("sched_ext is {}", state.trim()));
    }
    Ok(left)
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
