// SPDX-License-Identifier: MIT OR Apache-2.0
//! The eBPF objects of a process and of the kernel, and the files that could outlive them.

use anyhow::{Context as _, Result};
use std::collections::BTreeSet;
use std::io;

/// Kind and id of an eBPF object.
pub type Object = (&'static str, u32);

/// Kinds of eBPF objects: their names; the command of bpf(2) that lists their ids
/// (BPF_PROG_GET_NEXT_ID and its like); what a descriptor's `fdinfo` calls the id.
pub const KINDS: [(&str, u32, &str); 4] = [
    ("program", 11, "prog_id"),
    ("map", 12, "map_id"),
    ("BTF", 23, "btf_id"),
    ("link", 31, "link_id"),
];

/// How many descriptors the process `pid` (or `self`) has, and the objects that they stand for.
pub fn held_by(pid: &str) -> io::Result<(usize, BTreeSet<Object>)> {
    let mut objects = BTreeSet::new();
    let mut descriptors = 0;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        descriptors += 1;
        // A descriptor that is closed meanwhile is none of its own.
        let info = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        for (key, value) in info.lines().filter_map(|line| line.split_once(':')) {
            let kind = KINDS.iter().find(|(.., name)| *name == key);
            if let (Some((kind, ..)), Ok(id)) = (kind, value.trim().parse()) {
                objects.insert((*kind, id));
            }
        }
    }
    Ok((descriptors, objects))
}

/// How many instructions the kernel's verifier looked at in each of the eBPF programs that the
/// process `pid` has.
pub fn verified_by(pid: u32) -> io::Result<Vec<u64>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let info = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        let verified = info.lines().find_map(|line| line.strip_prefix("verified_insns:"));
        all.extend(verified.and_then(|number| number.trim().parse::<u64>().ok()));
    }
    Ok(all)
}

/// What outlives a program of this project that does not tidy up.
pub struct LeftBehind {
    /// The files that were there before.
    files: BTreeSet<String>,
    /// The eBPF objects that were made since.
    made: BTreeSet<Object>,
}

impl LeftBehind {
    pub fn from_now() -> LeftBehind {
        LeftBehind { files: files(), made: BTreeSet::new() }
    }

    /// Notes the objects of process `pid` (or `self`).
    pub fn note(&mut self, pid: &str) -> io::Result<()> {
        self.made.extend(held_by(pid)?.1);
        Ok(())
    }

    /// The objects that were made.
    pub fn made(&self) -> &BTreeSet<Object> {
        &self.made
    }

    /// Files that were not there before, and objects that are in the kernel, whoever keeps them (a
    /// pin, a link). Other programs have objects of their own. Needs root.
    pub fn now(&self) -> Result<Vec<String>> {
        let mut left: Vec<String> = files().difference(&self.files).cloned().collect();
        let all = all()?;
        left.extend(self.made.intersection(&all).map(|(kind, id)| format!("eBPF {kind} {id}")));
        Ok(left)
    }
}

/// Files of this project in shared memory, where eBPF objects are pinned, and guard's lock.
fn files() -> BTreeSet<String> {
    let files = ["/dev/shm", "/sys/fs/bpf", "/run/reprieve"].iter().flat_map(|dir| {
        let list = std::fs::read_dir(dir).into_iter().flatten().flatten();
        list.map(|entry| entry.path().display().to_string())
    });
    files.filter(|path| path.contains("reprieve")).collect()
}

/// All eBPF objects in the kernel.
fn all() -> Result<BTreeSet<Object>> {
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
