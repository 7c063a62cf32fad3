// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a busy guest and detaching, many times, leaves nothing behind: no eBPF object in
//! the kernel, no descriptor, no thread, no file.

use super::bpf_objects::{self, KINDS, LeftBehind};
use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_init::protocol::Workload;
use serde_json::json;
use std::time::{Duration, Instant};

/// How long to wait until nothing is left: the kernel frees eBPF objects a grace period or two
/// later.
const LEFT_LIMIT: Duration = Duration::from_secs(20);

/// This process's descriptors and threads.
fn own() -> Result<[(&'static str, usize); 2]> {
    let (descriptors, _) = bpf_objects::held_by("self").context("own descriptors")?;
    let threads = std::fs::read_dir("/proc/self/task").context("own threads")?.count();
    Ok([("descriptors", descriptors), ("threads", threads)])
}

pub fn check(setup: &GuestSetup, cycles: u32) -> Result<Finding> {
    let mut vm = setup.boot("cycles", 2, 512, "")?;
    setup.start(&mut vm, Workload::FileChurn { workers: 2 })?;
    // The first time may set up things that stay (caches of the C library, of BTF).
    drop(setup.watch(&vm)?);
    setup.progress.step(&format!("attaching {cycles} times"));
    let (before, mut traces) = (own()?, LeftBehind::from_now());
    let began = Instant::now();
    let mut preemptions = 0;
    for _ in 0..cycles {
        let mut watched = setup.watch(&vm)?;
        traces.note("self").context("own descriptors")?;
        setup.sleep(Duration::from_millis(10))?;
        preemptions += watched.totals().map_err(|e| anyhow!(e))?.preempted().count;
    }
    let took = began.elapsed();
    let mut more = vec![];
    setup.wait_until(LEFT_LIMIT, || {
        more = traces.now()?;
        let grown = own()?.into_iter().zip(before).filter(|((_, now), (_, then))| now > then);
        more.extend(grown.map(|((what, now), (_, then))| format!("{} {what}", now - then)));
        Ok(more.is_empty())
    })?;
    vm.shut_down(setup.cancel);
    let made = traces.made();
    let lacks = |kind| made.iter().filter(|(of, _)| *of == kind).count() < cycles as usize;
    if let Some((kind, ..)) = KINDS.iter().find(|(kind, ..)| lacks(*kind)) {
        bail!("a `watch` has an eBPF {kind}, and none was seen in /proc/self/fdinfo each time");
    }
    let mean = took.as_secs_f64() * 1e3 / f64::from(cycles);
    let mut text = format!(
        "  {cycles} cycles of {mean:.0} ms, {preemptions} preemptions seen, {} eBPF objects made; left behind: {}\n",
        made.len(),
        if more.is_empty() { "nothing" } else { "" }
    );
    more.iter().for_each(|what| text += &format!("! {what}\n"));
    let figures = json!({ "cycles": cycles, "cycle_ms": mean, "preemptions": preemptions, "made": made.len(), "left": more });
    Ok(Finding::new(Check::Cycles, more.is_empty(), text, figures))
}
