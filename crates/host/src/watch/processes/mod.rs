// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that use the Reprieve runtime (crate `rcu`): found by a note in their program or
//! libraries, read from outside.
//!
//! Module `inspect` of the runtime is the other side: the note has the address of a descriptor,
//! which has the layout of everything else. A process may lie, so its figures are no bounds here:
//! each process is read within a budget.

mod reader;

use crate::watch::model::Process;
use reader::Reader;
use reprieve_guest::vmm::{maps, process};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A process is inspected when it is this old, as it has started its program by then; and again
/// each time its age has doubled, as it may have loaded a library.
const SETTLED: Duration = Duration::from_secs(1);
/// Processes inspected per call: the kernel takes a millisecond for the list of mappings of a large
/// one.
const LOOKS: usize = 100;

const MAPPINGS: usize = 4096;

/// The processes that use the runtime, and those that do not.
#[derive(Default)]
pub struct Processes {
    seen: HashMap<u32, Seen>,
    /// By file: the distance from the start of its mapping to the descriptor; `None` without one.
    files: HashMap<(String, u64), Option<u64>>,
}

struct Seen {
    start_time: u64,
    first: Instant,
    /// The age at which it is looked at next.
    next: Duration,
    descriptor: Option<u64>,
}

impl Processes {
    /// Looks for new ones. Inspects none any more once `stop` is set.
    pub fn look(&mut self, stop: &AtomicBool) {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let mut seen = HashMap::new();
        let now = Instant::now();
        let mut looks = 0;
        for pid in pids.filter(|&pid| pid != std::process::id()) {
            let known = self.seen.remove(&pid);
            let mut entry = match known {
                Some(entry) => entry,
                None => match process::start_time(pid) {
                    Some(start_time) => {
                        Seen { start_time, first: now, next: SETTLED, descriptor: None }
                    }
                    None => continue,
                },
            };
            let age = now - entry.first;
            if age >= entry.next && looks < LOOKS && !stop.load(Ordering::Relaxed) {
                looks += 1;
                entry.next = age * 2;
                if let Some(start_time) = process::start_time(pid) {
                    entry.start_time = start_time;
                    entry.descriptor = self.descriptor_of(pid);
                }
            }
            seen.insert(pid, entry);
        }
        self.seen = seen;
        // Files that are replaced often, as in a build, must not add up.
        if self.files.len() > 100_000 {
            self.files.clear();
        }
    }

    fn descriptor_of(&mut self, pid: u32) -> Option<u64> {
        let maps = maps::read(pid).ok()?;
        let files = maps.iter().filter(|m| m.inode != 0 && m.offset == 0).take(MAPPINGS);
        for mapping in files {
            let key = (mapping.path.clone(), mapping.inode);
            let behind = match self.files.get(&key) {
                Some(known) => *known,
                None => {
                    let found = Reader::new(pid).descriptor(mapping.start);
                    let behind = found.map(|at| at.wrapping_sub(mapping.start));
                    self.files.insert(key, behind);
                    behind
                }
            };
            if let Some(behind) = behind {
                return Some(mapping.start.wrapping_add(behind));
            }
        }
        None
    }

    /// Those that use the runtime, as they are now.
    pub fn view(&self) -> Vec<Process> {
        let mut all: Vec<Process> = self
            .seen
            .iter()
            .filter_map(|(&pid, seen)| Some((pid, seen.start_time, seen.descriptor?)))
            .filter(|&(pid, start_time, _)| process::start_time(pid) == Some(start_time))
            .filter_map(|(pid, _, descriptor)| view(pid, descriptor))
            .collect();
        all.sort_by_key(|process| process.pid);
        all
    }
}

/// The domains of process `pid`, whose descriptor is at `descriptor`.
fn view(pid: u32, descriptor: u64) -> Option<Process> {
    let mut reader = Reader::new(pid);
    let layout = reader.layout(descriptor).ok()?;
    let domains = reader.domains(&layout);
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(Process { pid, name: reprieve_page::plain(name.trim_end()), domains })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::model::Domain;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reader_that_holds_up_a_grace_period_is_named() {
        let begun = Instant::now();
        let own = std::process::id();
        let descriptor = Processes::default().descriptor_of(own).expect("the note is found");
        let domain = reprieve::Domain::builder().build().unwrap();
        std::thread::scope(|scope| {
            let ((tell, told), (release, wait)) = (channel(), channel::<()>());
            let domain = &domain;
            scope.spawn(move || {
                let guard = domain.read_lock();
                // SAFETY: no preconditions.
                tell.send(unsafe { libc::gettid() } as u32).unwrap();
                let _ = wait.recv();
                drop(guard);
            });
            let reader = told.recv().unwrap();
            domain.defer(|| {});
            scope.spawn(|| domain.synchronize());
            let held = loop {
                let process = view(own, descriptor).unwrap();
                let held = process.domains.into_iter().find(|d| d.laggards == [reader]);
                if let Some(held) = held.filter(|d| d.current_age_ns > Some(1_000_000)) {
                    break held;
                }
                std::thread::yield_now();
            };
            assert!(held.threads >= 1 && held.readers == 1, "{held:?}");
            assert!(held.callbacks_waiting >= 1, "{held:?}");
            let oldest = u64::try_from(begun.elapsed().as_nanos()).unwrap();
            assert!(held.current_age_ns < Some(oldest), "{held:?}");
            release.send(()).unwrap();
        });
        domain.barrier().unwrap();
        let process = view(own, descriptor).unwrap();
        let quiet = |d: &&Domain| d.grace_periods > 0 && d.laggards.is_empty();
        let after = process.domains.iter().find(quiet).expect("the domain is still there");
        assert_eq!((after.readers, after.current_age_ns, after.callbacks_waiting), (0, None, 0));
    }
}
