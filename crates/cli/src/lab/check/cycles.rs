// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a busy guest and detaching, many times, leaves nothing behind: no eBPF object in
//! the kernel, no descriptor, no thread, no file.

use super::guest_setup::GuestSetup;
use super::{Check, Finding};
use anyhow::{Context as _, Result, anyhow, bail};
use reprieve_lab::limit::scaled;
use reprieve_lab::protocol::{Command, Workload};
use reprieve_lab::watcher::Watching;
use serde_json::json;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// How long to wait until nothing is left: the kernel frees eBPF objects a grace period or two
/// later.
const LEFT_LIMIT: Duration = Duration::from_secs(20);

/// Kind and id of an eBPF object.
type Object = (&'static str, u32);

/// Kinds of eBPF objects: their names; the command of bpf(2) that lists their ids
/// (BPF_PROG_GET_NEXT_ID and its like); what a descriptor's `fdinfo` calls the id.
const KINDS: [(&str, u32, &str); 4] = [
    ("program", 11, "prog_id"),
    ("map", 12, "map_id"),
    ("BTF", 23, "btf_id"),
    ("link", 31, "link_id"),
];

/// What a process has, and what `watch` could leave behind in it.
struct Own {
    descriptors: usize,
    threads: usize,
    /// Of this project, in `/dev/shm` and where eBPF objects are pinned.
    files: BTreeSet<String>,
    /// Objects that its descriptors stand for.
    objects: BTreeSet<Object>,
}

impl Own {
    fn now() -> Result<Own> {
        let mut objects = BTreeSet::new();
        let mut descriptors = 0;
        for entry in std::fs::read_dir("/proc/self/fdinfo").context("own descriptors")? {
            descriptors += 1;
            // One that is closed meanwhile is none of ours.
            let info = std::fs::read_to_string(entry?.path()).unwrap_or_default();
            for (key, value) in info.lines().filter_map(|line| line.split_once(':')) {
                let kind = KINDS.iter().find(|(.., name)| *name == key);
                if let (Some((kind, ..)), Ok(id)) = (kind, value.trim().parse()) {
                    objects.insert((*kind, id));
                }
            }
        }
        let threads = std::fs::read_dir("/proc/self/task").context("own threads")?.count();
        let files = ["/dev/shm", "/sys/fs/bpf"].iter().flat_map(|dir| {
            let list = std::fs::read_dir(dir).into_iter().flatten().flatten();
            list.map(|entry| entry.path().display().to_string())
        });
        let files = files.filter(|path| path.contains("reprieve")).collect();
        Ok(Own { descriptors, threads, files, objects })
    }

    /// What there is now and was not there `before`; of the eBPF objects in the kernel, whoever
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
        let all = bpf_objects()?;
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
    vm.shut_down();
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

/// All eBPF objects in the kernel. Needs root.
fn bpf_objects() -> Result<BTreeSet<Object>> {
    let mut all = BTreeSet::new();
    for (kind, command, _) in KINDS {
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
