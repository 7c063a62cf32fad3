// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a busy guest and detaching, many times, leaves nothing behind: no eBPF object in
//! the kernel, no descriptor, no thread, no file.

use super::bpf_objects::{self, KINDS, Object};
use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use crate::limit::scaled;
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_init::protocol::{Command, Workload};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long to wait until nothing is left: the kernel frees eBPF objects a grace period or two
/// later.
const LEFT_LIMIT: Duration = Duration::from_secs(20);

/// Things that a process has, and that `watch` could leave behind in it.
struct Own {
    descriptors: usize,
    threads: usize,
    /// Files of this project, in `/dev/shm` and where eBPF objects are pinned.
    files: BTreeSet<String>,
    /// Objects that its descriptors stand for.
    objects: BTreeSet<Object>,
}

impl Own {
    fn now() -> Result<Own> {
        let (descriptors, objects) = bpf_objects::held_by("self").context("own descriptors")?;
        let threads = std::fs::read_dir("/proc/self/task").context("own threads")?.count();
        let files = bpf_objects::files();
        Ok(Own { descriptors, threads, files, objects })
    }

    /// Things that are there now and were not `before`; of the eBPF objects in the kernel, whoever
    /// keeps them (a pin, a link), those in `made`. Other programs have objects of their own.
    fn more_than(&self, before: &Own, made: &BTreeSet<Object>) -> Result<Vec<String>> {
        let mut more = Vec::new();
        let kinds = [
            ("descriptors", self.descriptors, before.descriptors),
            ("threads", self.threads, before.threads),
        ];
        for (what, now, then) in kinds {
            if now > then {
                more.push(format!("{} {what}", now - then));
            }
        }
        more.extend(self.files.difference(&before.files).cloned());
        let all = bpf_objects::all()?;
        more.extend(made.intersection(&all).map(|(kind, id)| format!("eBPF {kind} {id}")));
        Ok(more)
    }
}

pub fn check(setup: &GuestSetup, cycles: u32) -> Result<Finding> {
    let mut vm = setup.boot("cycles", 2, 512, "")?;
    setup.prepare(&mut vm, Workload::FileChurn { workers: 2 }, None)?;
    setup.call(&mut vm, &Command::Start)?;
    // The first time may set up things that stay (caches of the C library, of BTF).
    drop(setup.watch(&vm)?);
    setup.progress.step(&format!("attaching {cycles} times"));
    let before = Own::now()?;
    let began = Instant::now();
    let mut preemptions = 0;
    let mut made = BTreeSet::new();
    for _ in 0..cycles {
        let mut watched = setup.watch(&vm)?;
        made.extend(Own::now()?.objects);
        setup.sleep(Duration::from_millis(10))?;
        preemptions += watched.totals().map_err(|e| anyhow!(e))?.preempted().count;
    }
    let took = began.elapsed();
    let since = Instant::now();
    let more = loop {
        let more = Own::now()?.more_than(&before, &made)?;
        if more.is_empty() || since.elapsed() > scaled(LEFT_LIMIT) {
            break more;
        }
        setup.sleep(Duration::from_millis(100))?;
    };
    vm.shut_down(setup.cancel);
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
