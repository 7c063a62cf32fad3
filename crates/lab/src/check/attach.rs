// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a big VM does not allocate its memory. It has as many vCPUs as its host has CPUs.
//!
//! A guest touches a small part of its memory; reading the rest through a mapping would allocate
//! it. The time that attaching takes is shown and not judged: it depends on the machine.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use crate::experiments::MAX_VCPUS;
use crate::vm::allowed_cpus;
use anyhow::{Context as _, Result, anyhow};
use serde_json::json;
use std::time::{Duration, Instant};

pub const MEMORY_MIB: u64 = 5 << 10;

/// The VM is watched once it takes at most this much more memory, KiB, in the same time by itself:
/// a huge page is 2 MiB.
const STEADY_KB: u64 = 4096;

/// How much more memory, KiB, the VM may take while it is watched: its own stacks and queues, and
/// what the guest still has to do. What it never used is a hundred times as much.
const GROWTH_KB: u64 = 48 << 10;

/// How long `watch` is attached.
const ATTACHED: Duration = Duration::from_secs(2);

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let vcpus = (allowed_cpus().len() as u32).clamp(2, MAX_VCPUS);
    let vm = setup.boot("attach", vcpus, MEMORY_MIB, "")?;
    let pid = vm.threads().pid();
    let (before, own) = steady_kb(setup, pid)?;
    setup.progress.step("attaching");
    let began = Instant::now();
    let mut watched = setup.watch(&vm)?;
    let took = began.elapsed();
    setup.sleep(ATTACHED)?;
    let totals = watched.totals().map_err(|e| anyhow!(e))?;
    let seen = watched.vm().map_err(|e| anyhow!(e))?.0.vcpus.len();
    drop(watched);
    let after = resident_kb(pid)?;
    vm.shut_down(setup.cancel);

    let growth = after.saturating_sub(before);
    let passed = growth <= own + GROWTH_KB && seen == vcpus as usize;
    let text = format!(
        "  attached to a VM of {MEMORY_MIB} MiB in {} ms, and saw {seen} of {vcpus} vCPUs; it used {} MiB before and {} MiB after ({growth} KiB more; {own} KiB more in the same time before)\n",
        took.as_millis(),
        before >> 10,
        after >> 10,
    );
    let figures = json!({
        "vcpus": seen, "attach_ms": took.as_millis() as u64, "resident_before_kb": before, "resident_after_kb": after,
        "grew_before_kb": own, "preemptions": totals.preempted().count,
    });
    Ok(Finding::new(Check::Attach, passed, text, figures))
}

/// Waits until process `pid` takes little more memory within the time for which it will be watched:
/// a guest has more to do after it has booted. Returns what it takes then, and what it took in that
/// time, KiB.
fn steady_kb(setup: &GuestSetup, pid: u32) -> Result<(u64, u64)> {
    let mut before = resident_kb(pid)?;
    loop {
        setup.sleep(ATTACHED)?;
        let now = resident_kb(pid)?;
        let grown = now.saturating_sub(before);
        if grown <= STEADY_KB {
            return Ok((now, grown));
        }
        before = now;
    }
}

/// Memory of process `pid` in RAM, KiB.
fn resident_kb(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the VM")?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let value = value.and_then(|v| v.trim().trim_end_matches(" kB").parse().ok());
    value.ok_or_else(|| anyhow!("process {pid} shows no VmRSS"))
}
