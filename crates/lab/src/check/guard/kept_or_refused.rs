// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CPU limit of a cgroup is guard's to keep where the kernel tells of it. Elsewhere it keeps
//! guard from scheduling, at its start and later, unless it is told to ignore limits.

use super::super::guest_setup::GuestSetup;
use super::cgroup::Cgroup;
use super::process::{End, Guard};
use crate::vm::Vm;
use anyhow::{Result, bail};
use reprieve_guard::{Options, Policy};

const FILE: &str = "cpu.max";

/// Returns a line for each thing that was seen.
pub fn check(setup: &GuestSetup, vms: &[Vm]) -> Result<Vec<String>> {
    setup.progress.step("guard and a limit of a cgroup");
    let cgroup = Cgroup::make()?;
    let mut lines = Vec::new();
    let named = |said: &str| said.contains(&cgroup.path.join(FILE).display().to_string());

    cgroup.write(FILE, "50000 100000")?;
    if !reprieve_guard::kept_limits(&Options::default()).is_empty() {
        let mut guard = Guard::start(setup, Policy::Full, &[])?;
        let statistics = guard.work(setup, Policy::Full, vms)?;
        let path = cgroup.path.display().to_string();
        let all = statistics["limits"].as_array().cloned().unwrap_or_default();
        if !all.iter().any(|limit| limit["cgroup"] == path && limit["quota_ns"] == 50_000_000) {
            bail!("beside a limit of {path}, guard's statistics are {statistics}");
        }
        guard.end(setup, End::Signal)?;
        lines.push("beside a limit in cpu.max: schedules, and keeps it".into());
        let mut guard = Guard::start(setup, Policy::Full, &["--ignore-cpu-max"])?;
        guard.work(setup, Policy::Full, vms)?;
        guard.end(setup, End::Signal)?;
        lines.push("with --ignore-cpu-max: schedules".into());
        return Ok(lines);
    }
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
