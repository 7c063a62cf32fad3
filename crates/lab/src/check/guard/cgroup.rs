// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cgroup for the checks.

use anyhow::{Context as _, Result, anyhow};
use reprieve_watch::cgroup;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of version 2 for this check, removed when dropped.
pub struct Cgroup {
    pub path: PathBuf,
    root: PathBuf,
    /// Where the hierarchy was not mounted before.
    mounted: Option<tempfile::TempDir>,
    /// The controller was not enabled before, below this cgroup.
    enabled: Option<PathBuf>,
}

impl Cgroup {
    pub fn make() -> Result<Cgroup> {
        Cgroup::make_named("reprieve-check")
    }

    pub fn make_named(name: &str) -> Result<Cgroup> {
        let (root, mounted) = match cgroup::unified() {
            Some(root) => (root, None),
            None => {
                let at = tempfile::tempdir()?;
                mount("none", at.path(), "cgroup2", MountFlags::empty(), None)
                    .context("mounting cgroup2")?;
                (at.path().to_owned(), Some(at))
            }
        };
        let path = root.join(format!("{name}.{}", std::process::id()));
        let mut cgroup = Cgroup { path, root: root.clone(), mounted, enabled: None };
        let control = root.join("cgroup.subtree_control");
        if !fs::read_to_string(&control)?.split_whitespace().any(|c| c == "cpu") {
            fs::write(&control, "+cpu").with_context(|| control.display().to_string())?;
            cgroup.enabled = Some(control);
        }
        fs::create_dir(&cgroup.path).with_context(|| cgroup.path.display().to_string())?;
        Ok(cgroup)
    }

    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let file = self.path.join(file);
        fs::write(&file, text).with_context(|| file.display().to_string())
    }

    /// CPU time of its processes and threads so far, ns.
    pub fn used_ns(&self) -> Result<u64> {
        Cgroup::used_ns_of(&self.path)
    }

    /// The same of the cgroup with this directory.
    pub fn used_ns_of(path: &Path) -> Result<u64> {
        let file = path.join("cpu.stat");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let us = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
        let us: u64 = us.ok_or_else(|| anyhow!("no usage in {}", file.display()))?.parse()?;
        Ok(us * 1000)
    }

    /// Takes in a process, until the result is dropped.
    pub fn take(&self, pid: u32) -> Result<Moved> {
        self.move_to(&self.path, pid)
    }

    /// Moves a process to another cgroup of the hierarchy, until the result is dropped.
    pub fn move_to(&self, path: &Path, pid: u32) -> Result<Moved> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let before = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let before = before.ok_or_else(|| anyhow!("process {pid} has no cgroup"))?;
        let procs = self.root.join(before).join("cgroup.procs");
        let file = path.join("cgroup.procs");
        fs::write(&file, pid.to_string()).with_context(|| file.display().to_string())?;
        Ok(Moved { pid, procs })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
        if let Some(control) = &self.enabled {
            let _ = fs::write(control, "-cpu");
        }
        if let Some(at) = &self.mounted {
            let _ = unmount(at.path(), UnmountFlags::DETACH);
        }
    }
}

/// A process that goes back to its own cgroup when this is dropped.
pub struct Moved {
    pid: u32,
    procs: PathBuf,
}

impl Drop for Moved {
    fn drop(&mut self) {
        let _ = fs::write(&self.procs, self.pid.to_string());
    }
}
