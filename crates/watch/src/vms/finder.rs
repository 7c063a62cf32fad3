// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds VMMs among the host's processes without inspecting every process each time.
//!
//! A process that was just forked may still start a VMM's program. So a new process is inspected at
//! each look for a few seconds, and an old one only now and then.

use reprieve_guest::vmm::process::{self, Process};
use reprieve_guest::vmm::{self, qemu};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A process is inspected at each look until it has been known for so long.
const YOUNG: Duration = Duration::from_secs(10);
/// Time between two inspections of an old process.
const AGAIN: Duration = Duration::from_secs(60);

/// A VMM's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub pid: u32,
    /// Tells it from a later process with the same ID.
    pub start_time: u64,
}

#[derive(Default)]
pub struct Finder {
    /// Processes that were no VMM, with the times of the first and the last inspection.
    others: HashMap<u32, (Instant, Instant)>,
}

impl Finder {
    /// VMMs that run now, with their names; without those whose process IDs `known` accepts.
    pub fn find(&mut self, known: impl Fn(u32) -> bool) -> Vec<(Key, Option<String>)> {
        let now = Instant::now();
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let pids: Vec<u32> = pids.filter(|&pid| !known(pid)).collect();
        let mut others = HashMap::with_capacity(pids.len());
        let mut found = Vec::new();
        for pid in pids {
            let (first, last) = self.others.get(&pid).copied().unwrap_or((now, now));
            let due = now - first < YOUNG || now - last >= AGAIN;
            if !due {
                others.insert(pid, (first, last));
                continue;
            }
            match Process::read(pid).filter(qemu::owns) {
                Some(process) => {
                    let key = Key { pid, start_time: process.start_time };
                    found.push((key, qemu::name_of(&process)));
                }
                None => {
                    others.insert(pid, (first, now));
                }
            }
        }
        self.others = others;
        found
    }
}

/// The VM of a VMM found before. May wait for the VMM, for a bounded time.
pub fn describe(key: Key) -> reprieve_guest::Result<vmm::Vm> {
    let pid = key.pid;
    let process = Process::read(pid).filter(|process| process.start_time == key.start_time);
    match process {
        Some(process) if qemu::owns(&process) => qemu::describe(&process),
        // This process has no file descriptor left, say.
        None if !process::is_gone(pid, key.start_time) => {
            let reason = "its command line cannot be read".into();
            Err(reprieve_guest::Error::Layout { pid, reason })
        }
        _ => Err(reprieve_guest::Error::Gone { pid }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_no_vmm() {
        let mut finder = Finder::default();
        let me = std::process::id();
        assert!(finder.find(|_| false).iter().all(|(key, _)| key.pid != me));
        assert!(finder.others.contains_key(&me));
        finder.find(|pid| pid == me);
        assert!(!finder.others.contains_key(&me), "known ones are not inspected");
    }
}
