// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that use the Reprieve runtime (crate `rcu`): found by a note in their program or
//! libraries, read from outside.
//!
//! Module `inspect` of the runtime is the other side: the note has the address of a descriptor,
//! which has the layout of everything else. A process may lie, so its figures are no bounds here:
//! each process is read within a budget, and all together within another. A read may also take
//! until this process ends, for a page of a file system that does not answer. So one thread does it
//! that nobody waits for, and snapshots show what it saw last.

mod reader;

use crate::model::Process;
use reader::{BUDGET, Reader, SHOWN};
use reprieve_guest::vmm::maps::{self, Mapping};
use reprieve_guest::vmm::process;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A process is inspected when it is this old, as it has started its program by then; and again
/// each time its age has doubled, as it may have loaded a library.
const SETTLED: Duration = Duration::from_secs(1);
/// Processes inspected per call: the kernel takes a millisecond for the list of mappings of a large
/// one.
const LOOKS: usize = 100;

const MAPPINGS: usize = 4096;

/// Bytes read of all processes together, per look and per view: those of a few that lie.
const TOTAL: usize = 4 * BUDGET;

/// Domains that are shown of all processes together, unless there are more processes.
const DOMAINS: usize = 16 * SHOWN;

/// A view of this age is not shown any more: the thread waits for a page.
const STALE: Duration = Duration::from_secs(30);

/// The latest view, and when it was taken.
type Latest = Mutex<Option<(Instant, Vec<Process>)>>;

/// Looks at the processes again and again, until it is dropped.
pub struct Inspector {
    latest: Arc<Latest>,
    stop: Arc<AtomicBool>,
    /// The thread ends when this is closed.
    _end: Sender<()>,
}

impl Inspector {
    pub fn start(interval: Duration) -> std::io::Result<Inspector> {
        let mut processes = Processes::default();
        Inspector::with(interval, move |stop| {
            processes.look(stop);
            processes.view()
        })
    }

    fn with(
        interval: Duration,
        mut see: impl FnMut(&AtomicBool) -> Vec<Process> + Send + 'static,
    ) -> std::io::Result<Inspector> {
        let (end, ended) = channel::<()>();
        let (latest, stop) = (Arc::<Latest>::default(), Arc::new(AtomicBool::new(false)));
        let (to, stopped) = (latest.clone(), stop.clone());
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                let seen = see(&stopped);
                *to.lock().unwrap_or_else(|e| e.into_inner()) = Some((Instant::now(), seen));
                if ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        // Never joined: it may wait for a page.
        std::thread::Builder::new().name("watch-processes".into()).spawn(run)?;
        Ok(Inspector { latest, stop, _end: end })
    }

    /// The processes that use the runtime, as they were a moment ago.
    pub fn latest(&self) -> Vec<Process> {
        let latest = self.latest.lock().unwrap_or_else(|e| e.into_inner());
        let fresh = latest.as_ref().filter(|(at, _)| at.elapsed() < STALE);
        fresh.map(|(_, seen)| seen.clone()).unwrap_or_default()
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The processes that use the runtime, and those that do not.
#[derive(Default)]
struct Processes {
    seen: HashMap<u32, Seen>,
    /// The distance from the start of a file's mapping to the descriptor; `None` without one.
    files: HashMap<File, Option<u64>>,
    paths: RandomState,
}

/// A file as a user's processes see it. Other users' count for nothing: a process may change what
/// it has mapped, and in a mount namespace of its own any path may be any file.
#[derive(PartialEq, Eq, Hash)]
struct File {
    user: u32,
    device: (u32, u32),
    inode: u64,
    /// The hash of its path: of thousands of files, each path may be long.
    path: u64,
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
    fn look(&mut self, stop: &AtomicBool) {
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
        let mut seen = HashMap::new();
        let now = Instant::now();
        let (mut looks, mut left) = (0, TOTAL);
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
            let room = looks < LOOKS && left >= BUDGET;
            if age >= entry.next && room && !stop.load(Ordering::Relaxed) {
                looks += 1;
                entry.next = age * 2;
                if let Some(start_time) = process::start_time(pid) {
                    entry.start_time = start_time;
                    let mut reader = Reader::new(pid, BUDGET);
                    let other = !is_own_program(pid);
                    entry.descriptor =
                        other.then(|| self.descriptor_of(pid, &mut reader)).flatten();
                    left -= BUDGET - reader.left();
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

    fn descriptor_of(&mut self, pid: u32, reader: &mut Reader) -> Option<u64> {
        let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        self.descriptor_in(&maps::read(pid).ok()?, user, reader)
    }

    fn descriptor_in(&mut self, maps: &[Mapping], user: u32, reader: &mut Reader) -> Option<u64> {
        let files = maps.iter().filter(|m| m.inode != 0 && m.offset == 0).take(MAPPINGS);
        for mapping in files {
            let (device, inode) = (mapping.device, mapping.inode);
            let path = self.paths.hash_one(&mapping.path);
            let file = File { user, device, inode, path };
            let behind = match self.files.get(&file) {
                Some(known) => *known,
                None => match reader.descriptor(mapping.start) {
                    Ok(found) => {
                        let behind = found.map(|at| at.wrapping_sub(mapping.start));
                        self.files.insert(file, behind);
                        behind
                    }
                    // The next look goes on from here.
                    Err(error) if error.kind() == ErrorKind::QuotaExceeded => return None,
                    // The process ends, perhaps. That says nothing about the file.
                    Err(_) => None,
                },
            };
            if let Some(behind) = behind {
                return Some(mapping.start.wrapping_add(behind));
            }
        }
        None
    }

    /// The processes that use the runtime, as they are now.
    fn view(&self) -> Vec<Process> {
        let mut all: Vec<(u32, u64)> = self
            .seen
            .iter()
            .filter_map(|(&pid, seen)| Some((pid, seen.start_time, seen.descriptor?)))
            .filter(|&(pid, start_time, _)| process::start_time(pid) == Some(start_time))
            .map(|(pid, _, descriptor)| (pid, descriptor))
            .collect();
        all.sort_unstable();
        let (mut left, mut domains, mut others) = (TOTAL, DOMAINS, all.len());
        let view = |(pid, descriptor)| {
            // An equal share of what those before have left: nobody can use up all.
            let share = (left / others).min(BUDGET);
            let mut reader = Reader::new(pid, share);
            let shown = (domains / others).clamp(1, SHOWN);
            let process = view(pid, &mut reader, descriptor, shown);
            left -= share - reader.left();
            domains -= process.as_ref().map_or(0, |process| process.domains.len()).min(domains);
            others -= 1;
            process
        };
        all.into_iter().filter_map(view).collect()
    }
}

/// Whether the process runs the program of this one: another `reprieve` is no user of the runtime
/// that anybody looks for.
fn is_own_program(pid: u32) -> bool {
    let program = |process: &str| {
        let program = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((program.dev(), program.ino()))
    };
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

/// The first domains of process `pid`, so many, whose descriptor is at `descriptor`.
fn view(pid: u32, reader: &mut Reader, descriptor: u64, shown: usize) -> Option<Process> {
    let layout = reader.layout(descriptor).ok()?;
    let domains = reader.domains(&layout, shown);
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(Process { pid, name: reprieve_page::plain(name.trim_end()), domains })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Domain;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reader_that_holds_up_a_grace_period_is_named() {
        let begun = Instant::now();
        let own = std::process::id();
        let mut reader = Reader::new(own, BUDGET);
        let descriptor = Processes::default().descriptor_of(own, &mut reader);
        let descriptor = descriptor.expect("the note is found");
        let view = || view(own, &mut Reader::new(own, BUDGET), descriptor, SHOWN).unwrap();
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
                let process = view();
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
        let process = view();
        let quiet = |d: &&Domain| d.grace_periods > 0 && d.laggards.is_empty();
        let after = process.domains.iter().find(quiet).expect("the domain is still there");
        assert_eq!((after.readers, after.current_age_ns, after.callbacks_waiting), (0, None, 0));
    }

    #[test]
    fn another_reprieve_is_no_user_of_the_runtime() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let exe = std::fs::metadata("/proc/self/exe").unwrap().ino();
        while std::fs::metadata(format!("/proc/{}/exe", other.id())).unwrap().ino() == exe {
            std::thread::yield_now();
        }
        let own = [std::process::id(), other.id()].map(is_own_program);
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(own, [true, false]);
    }

    #[test]
    fn nobody_waits_for_a_process_that_cannot_be_read() {
        let ((tell, told), (release, released)) = (channel(), channel::<()>());
        let mut looks = 0;
        let see = move |_: &AtomicBool| {
            looks += 1;
            if looks > 1 {
                tell.send(()).unwrap();
                let _ = released.recv();
            }
            vec![Process { pid: looks, name: "first".into(), domains: vec![] }]
        };
        let inspector = Inspector::with(Duration::ZERO, see).unwrap();
        // The second look does not end.
        told.recv().unwrap();
        let latest = inspector.latest();
        assert!(latest.iter().all(|process| process.pid == 1), "{latest:?}");
        drop(inspector);
        assert!(told.try_recv().is_err(), "the second look has not ended");
        drop(release);
    }

    /// A file that looks like a program with 70 segments of notes.
    fn full_of_notes() -> Vec<u8> {
        let mut file = vec![0u8; 32 << 10];
        file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        let (headers, size, number) = (64u64, 56u16, 71u16);
        file[32..40].copy_from_slice(&headers.to_le_bytes());
        file[54..56].copy_from_slice(&size.to_le_bytes());
        file[56..58].copy_from_slice(&number.to_le_bytes());
        for (n, header) in file[64..].chunks_exact_mut(56).take(number.into()).enumerate() {
            let kind = if n == 0 { object::elf::PT_LOAD } else { object::elf::PT_NOTE };
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[40..48].copy_from_slice(&(16u64 << 10).to_le_bytes());
        }
        file
    }

    #[test]
    fn one_budget_is_for_all_files_of_a_process() {
        let memory = full_of_notes();
        let start = memory.as_ptr().addr() as u64;
        let mapping = |inode| Mapping {
            start,
            end: start + memory.len() as u64,
            writable: false,
            shared: false,
            offset: 0,
            device: (8, 1),
            inode,
            path: String::new(),
        };
        let maps: Vec<Mapping> = (1..=4).map(mapping).collect();
        let each = 4096 + 70 * (16 << 10);
        let budget = 2 * each + each / 2;
        let mut processes = Processes::default();
        let mut look = |user| {
            let mut reader = Reader::new(std::process::id(), budget);
            assert_eq!(processes.descriptor_in(&maps, user, &mut reader), None);
            (processes.files.len(), budget - reader.left())
        };
        let (known, spent) = look(7);
        assert_eq!(known, 2, "nothing is known of a file that was not read to its end");
        assert!(spent > 2 * each && spent <= budget, "{spent}");
        assert_eq!(look(7), (4, 2 * each), "goes on where the budget ended");
        assert_eq!(look(7), (4, 0));
        let (known, _) = look(8);
        assert_eq!(known, 6, "another user's processes are looked at themselves");
    }
}
