// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds VMMs among the host's processes without looking at all of them every time.
//!
//! A process that is no VMM may become one: it was just forked and has yet to start its program. So a new process is looked at for a few seconds, and
//! an old one again now and then.

use reprieve_guest::vmm::process::Process;
use reprieve_guest::vmm::{self, Vmm};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A process is looked at each time while it is younger than this to us.
const YOUNG: Duration = Duration::from_secs(10);
/// And then this often.
const AGAIN: Duration = Duration::from_secs(60);

/// A VMM's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub pid: u32,
    /// Tells it from a later process with the same ID.
    pub start_time: u64,
}

#[derive(Default)]
pub struct Discovery {
    /// Processes that were no VMM: first and last look.
    others: HashMap<u32, (Instant, Instant)>,
}

impl Discovery {
    /// VMMs that run now, but for those that `known` says are known, with their names.
    pub fn look(&mut self, known: impl Fn(u32) -> bool) -> Vec<(Key, Option<String>)> {
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
            match process_and_kind(pid) {
                Some((process, kind)) => {
                    let key = Key { pid, start_time: process.start_time };
                    found.push((key, kind.name_of(&process)));
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

fn process_and_kind(pid: u32) -> Option<(Process, &'static dyn Vmm)> {
    let process = Process::read(pid)?;
    let kind = vmm::kinds().iter().find(|kind| kind.owns(&process))?;
    Some((process, *kind))
}

/// The VM of a VMM found before. May wait for the VMM, for a bounded time.
pub fn describe(key: Key) -> reprieve_guest::Result<vmm::Vm> {
    let gone = reprieve_guest::Error::Gone { pid: key.pid };
    match process_and_kind(key.pid) {
        Some((process, kind)) if process.start_time == key.start_time => kind.describe(&process),
        _ => Err(gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_no_vmm() {
        let mut discovery = Discovery::default();
        let me = std::process::id();
        assert!(discovery.look(|_| false).iter().all(|(key, _)| key.pid != me));
        assert!(discovery.others.contains_key(&me));
        discovery.look(|pid| pid == me);
        assert!(!discovery.others.contains_key(&me), "known ones are none of its business");
    }
}
