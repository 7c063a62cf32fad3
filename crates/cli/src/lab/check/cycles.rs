// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a busy guest and detaching, many times, leaves nothing behind: no eBPF object in
//! the kernel, no descriptor, no thread, no file.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use anyhow::{Context as _, Result, anyhow};
use reprieve_lab::limit::scaled;
use reprieve_lab::protocol::{Command, Workload};
use reprieve_lab::watcher::Watching;
use serde_json::json;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// How long to wait until nothing is left: the kernel frees eBPF objects a grace period or two
/// later, and another `watch` may begin and end on this machine meanwhile.
const LEFT_LIMIT: Duration = Duration::from_secs(20);

/// Everything that `watch` could leave behind.
#[derive(PartialEq, Eq)]
struct Left {
    descriptors: usize,
    threads: usize,
    /// In `/dev/shm` and where eBPF objects are pinned.
    files: BTreeSet<String>,
    /// Kind and id of every object in the kernel.
    objects: BTreeSet<(&'static str, u32)>,
}

impl Left {
    fn now() -> Result<Left> {
        let entries = |dir: &str| std::fs::read_dir(dir).map(|list| list.count());
        let files = ["/dev/shm", "/sys/fs/bpf"].iter().flat_map(|dir| {
            let list = std::fs::read_dir(dir).into_iter().flatten().flatten();
            list.map(|entry| entry.path().display().to_string())
        });
        Ok(Left {
            descriptors: entries("/proc/self/fd").context("own descriptors")?,
            threads: entries("/proc/self/task").context("own threads")?,
            files: files.collect(),
            objects: bpf_objects()?,
        })
    }

    /// The things that are there now and were not there `before`.
    fn more_than(&self, before: &Left) -> Vec<String> {
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
        let new = self.objects.difference(&before.objects);
        more.extend(new.map(|(kind, id)| format!("eBPF {kind} {id}")));
        more
    }
}

pub fn check(setup: &GuestSetup, cycles: u32) -> Result<Finding> {
    let mut vm = setup.boot("cycles", 2, 512, "")?;
    setup.prepare(&mut vm, Workload::FileChurn { workers: 2 }, None)?;
    setup.call(&mut vm, &Command::Start)?;
    // The first time may set up things that stay (caches of the C library, of BTF).
    drop(setup.watch(&vm)?);
    setup.progress.step(&format!("attaching {cycles} times"));
    let before = Left::now()?;
    let began = Instant::now();
    let mut preemptions = 0;
    for _ in 0..cycles {
        let mut watched = setup.watch(&vm)?;
        setup.sleep(Duration::from_millis(10))?;
        preemptions += watched.totals().map_err(|e| anyhow!(e))?.preempted().count;
    }
    let took = began.elapsed();
    let since = Instant::now();
    let more = loop {
        let more = Left::now()?.more_than(&before);
        if more.is_empty() || since.elapsed() > scaled(LEFT_LIMIT) {
            break more;
        }
        setup.sleep(Duration::from_millis(100))?;
    };
    vm.shut_down();
    let mean = took.as_secs_f64() * 1e3 / f64::from(cycles);
    let mut text = format!(
        "  {cycles} cycles of {mean:.0} ms, {preemptions} preemptions seen; left behind: {}\n",
        if more.is_empty() { "nothing" } else { "" }
    );
    more.iter().for_each(|what| text += &format!("! {what}\n"));
    let figures =
        json!({ "cycles": cycles, "cycle_ms": mean, "preemptions": preemptions, "left": more });
    Ok(Finding::new(Check::Cycles, more.is_empty(), text, figures))
}

/// All eBPF objects in the kernel. Needs root.
fn bpf_objects() -> Result<BTreeSet<(&'static str, u32)>> {
    // Commands of bpf(2): BPF_PROG_GET_NEXT_ID and its like.
    const KINDS: [(&str, u32); 4] = [("program", 11), ("map", 12), ("BTF", 23), ("link", 31)];
    let mut all = BTreeSet::new();
    for (kind, command) in KINDS {
        let mut id = 0;
        while let Some(next) =
            next_id(command, id).with_context(|| format!("listing eBPF {kind}s"))?
        {
            all.insert((kind, next));
            id = next;
        }
    }
    Ok(all)
}

/// The first id above `id`.
fn next_id(command: u32, id: u32) -> io::Result<Option<u32>> {
    // The fields of union bpf_attr that these commands use: start_id, next_id, open_flags.
    let mut attr = [id, 0, 0];
    // SAFETY: `attr` is valid for reads and writes of the size given, which is all that the kernel
    // looks at.
    let r = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of_val(&attr)) };
    if r == 0 {
        return Ok(Some(attr[1]));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        e => Err(e),
    }
}
