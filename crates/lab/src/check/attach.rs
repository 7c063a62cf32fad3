// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a big VM is quick and does not allocate its memory.
//!
//! A guest touches a small part of its memory; reading the rest through a mapping would allocate
//! it. Looking for the guest in all of the memory that it uses would take time, so attaching is
//! compared with reading that memory once, in the same run. A second is the promise; since the time
//! depends on the machine too, a multiple of that reading passes as well, in time on a CPU: a busy
//! machine may let either wait.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use crate::watcher::Watching;
use anyhow::{Context as _, Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub const MEMORY_MIB: u64 = 5 << 10;

const PROMISE: Duration = Duration::from_secs(1);

/// If attaching takes longer than promised: at most as much CPU as so many readings of the memory.
const READINGS: u32 = 10;

/// The VM is watched once it takes at most this much more memory, KiB, in the same time by itself:
/// a huge page is 2 MiB.
const STEADY_KB: u64 = 4096;

/// How much more memory, KiB, the VM may take while it is watched: its own stacks and queues, and
/// what the guest still has to do. What it never used is a hundred times as much.
const GROWTH_KB: u64 = 48 << 10;

/// How long `watch` is attached.
const ATTACHED: Duration = Duration::from_secs(2);

pub fn check(setup: &GuestSetup) -> Result<Finding> {
    let vm = setup.boot("attach", 2, MEMORY_MIB, "")?;
    let pid = vm.threads().pid();
    let (before, own) = steady_kb(setup, pid)?;
    setup.progress.step("attaching");
    let (began, cpu) = (Instant::now(), cpu_time());
    let mut watched = setup.watch(&vm)?;
    let (took, took_cpu) = (began.elapsed(), cpu_time() - cpu);
    setup.sleep(ATTACHED)?;
    let totals = watched.totals().map_err(|e| anyhow!(e))?;
    drop(watched);
    let after = resident_kb(pid)?;
    let (bytes, reading) = read_resident(pid)?;
    let read = resident_kb(pid)?;
    vm.shut_down(setup.cancel);

    let growth = after.saturating_sub(before);
    let kept = took <= PROMISE;
    let passed = (kept || took_cpu <= reading * READINGS) && growth <= own + GROWTH_KB;
    let text = format!(
        "  attached to a VM of {MEMORY_MIB} MiB in {} ms (promised: {} ms, {}), {} ms of them on a CPU; reading the {} MiB that it uses once takes {} ms on a CPU\n  it used {} MiB before and {} MiB after ({growth} KiB more; {own} KiB more in the same time before)\n",
        took.as_millis(),
        PROMISE.as_millis(),
        if kept { "kept" } else { "NOT kept" },
        took_cpu.as_millis(),
        bytes >> 20,
        reading.as_millis(),
        before >> 10,
        after >> 10,
    );
    let figures = json!({
        "attach_ms": took.as_millis() as u64, "attach_cpu_ms": took_cpu.as_millis() as u64, "promise_kept": kept, "read_cpu_ms": reading.as_millis() as u64, "read_bytes": bytes, "resident_before_kb": before,
        "resident_after_kb": after, "resident_after_reading_kb": read, "grew_before_kb": own, "preemptions": totals.preempted().count,
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

/// Time of this process, all its threads, on a CPU.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reads every resident page of the largest mapping of process `pid`; returns the bytes and the
/// time on a CPU.
fn read_resident(pid: u32) -> Result<(u64, Duration)> {
    const PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).context("the VM's mappings")?;
    let range = |line: &str| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let largest = maps.lines().filter_map(range).max_by_key(|(start, end)| end - start);
    let (start, end) = largest.ok_or_else(|| anyhow!("process {pid} has no mappings"))?;
    let began = cpu_time();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).context("the VM's page map")?;
    let memory = File::open(format!("/proc/{pid}/mem")).context("the VM's memory")?;
    let mut entries = vec![0; ((end - start) / PAGE * 8) as usize];
    pagemap.read_exact_at(&mut entries, start / PAGE * 8).context("the VM's page map")?;
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    let present: Vec<bool> = entries
        .chunks_exact(8)
        .map(|e| u64::from_ne_bytes(e.try_into().unwrap_or_default()) & PRESENT != 0)
        .collect();
    let mut page = 0;
    while page < present.len() {
        let run =
            present[page..].iter().take_while(|p| **p).take(buffer.len() / PAGE as usize).count();
        if run > 0 {
            let part = &mut buffer[..run * PAGE as usize];
            memory.read_exact_at(part, start + page as u64 * PAGE).context("the VM's memory")?;
            bytes += part.len() as u64;
        }
        page += run.max(1);
    }
    Ok((bytes, cpu_time() - began))
}
