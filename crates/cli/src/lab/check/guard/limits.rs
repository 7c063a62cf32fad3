// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU limit of a cgroup keeps guard from scheduling, at its start and later, unless it is told
//! to ignore limits.

use super::super::guest_setup::GuestSetup;
use super::process::{End, Guard};
use anyhow::{Context as _, Result, bail};
use reprieve_host::guard::Policy;
use reprieve_lab::vm::Vm;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::PathBuf;

const FILE: &str = "cpu.max";

/// Returns a line for each thing that was seen.
pub fn check(setup: &GuestSetup, vms: &[Vm]) -> Result<Vec<String>> {
    setup.progress.step("guard and a limit of a cgroup");
    let cgroup = Cgroup::make()?;
    let mut lines = Vec::new();
    let named = |said: &str| said.contains(&cgroup.path.join(FILE).display().to_string());

    cgroup.write(FILE, "50000 100000")?;
    let (said, refused) = Guard::refusal(setup, &[])?;
    if !refused || !named(&said) {
        bail!("beside a limit, guard said: {said}");
    }
    lines.push("beside a limit in cpu.max: refused, the cgroup named".into());

    let mut guard = Guard::start(setup, Policy::Full, &["--ignore-cpu-max"])?;
    guard.work(setup, Policy::Full, vms)?;
    guard.end(setup, End::Signal)?;
    lines.push("with --ignore-cpu-max: schedules".into());

    cgroup.write(FILE, "max")?;
    let mut guard = Guard::start(setup, Policy::Full, &[])?;
    guard.work(setup, Policy::Full, vms)?;
    cgroup.write(FILE, "50000 100000")?;
    let said = guard.gives_up(setup)?;
    if !named(&said) {
        bail!("when a limit was set, guard said: {said}");
    }
    lines.push("a limit set later: ended, the cgroup named, stock scheduler back".into());
    Ok(lines)
}

/// A cgroup of version 2 for this check, removed when dropped.
struct Cgroup {
    path: PathBuf,
    /// Where the hierarchy was not mounted before.
    mounted: Option<tempfile::TempDir>,
    /// The controller was not enabled before, below this cgroup.
    enabled: Option<PathBuf>,
}

impl Cgroup {
    fn make() -> Result<Cgroup> {
        let found = fs::read_to_string("/proc/self/mounts")?.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let at = fields.next()?;
            (fields.next() == Some("cgroup2")).then(|| PathBuf::from(at))
        });
        let (root, mounted) = match found {
            Some(root) => (root, None),
            None => {
                let at = tempfile::tempdir()?;
                mount("none", at.path(), "cgroup2", MountFlags::empty(), None)
                    .context("mounting cgroup2")?;
                (at.path().to_owned(), Some(at))
            }
        };
        let path = root.join(format!("reprieve-check.{}", std::process::id()));
        let mut cgroup = Cgroup { path, mounted, enabled: None };
        let control = root.join("cgroup.subtree_control");
        if !fs::read_to_string(&control)?.split_whitespace().any(|c| c == "cpu") {
            fs::write(&control, "+cpu").with_context(|| control.display().to_string())?;
            cgroup.enabled = Some(control);
        }
        fs::create_dir(&cgroup.path).with_context(|| cgroup.path.display().to_string())?;
        Ok(cgroup)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let file = self.path.join(file);
        fs::write(&file, text).with_context(|| file.display().to_string())
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
