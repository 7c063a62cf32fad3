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
use crate::raw::clock;
use reader::{BUDGET, Reader, SHOWN};
use reprieve_guest::vmm::maps;
use reprieve_guest::vmm::process;
use std::collections::HashMap;
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

/// A look rests for so many times the CPU time that it took: processes may make it long.
const REST: u32 = 10;

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
                let before = clock::thread_ns();
                let seen = see(&stopped);
                let took = Duration::from_nanos(clock::thread_ns() - before);
                *to.lock().unwrap_or_else(|e| e.into_inner()) = Some((Instant::now(), seen));
                let rest = interval.max(took * REST);
                if ended.recv_timeout(rest) != Err(RecvTimeoutError::Timeout) {
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
                    entry.descriptor = other.then(|| descriptor_of(pid, &mut reader)).flatten();
                    left -= BUDGET - reader.left();
                }
            }
            seen.insert(pid, entry);
        }
        self.seen = seen;
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
        // Equal shares: nobody can use up all.
        let processes = all.len().max(1);
        let (share, shown) =
            ((TOTAL / processes).min(BUDGET), (DOMAINS / processes).clamp(1, SHOWN));
        let view = |(pid, descriptor)| view(pid, &mut Reader::new(pid, share), descriptor, shown);
        all.into_iter().filter_map(view).collect()
    }
}

/// The runtime's descriptor, in the first file that the process has mapped and that has one.
fn descriptor_of(pid: u32, reader: &mut Reader) -> Option<u64> {
    let maps = maps::read(pid).ok()?.into_iter();
    let mut files = maps.filter(|m| m.inode != 0 && m.offset == 0).take(MAPPINGS);
    files.find_map(|mapping| reader.descriptor(mapping.start))
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
        let descriptor = descriptor_of(own, &mut reader);
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

    #[test]
    fn processes_that_lie_cost_a_tenth_of_a_cpu() {
        const EACH: Duration = Duration::from_millis(20);
        let (tell, told) = channel();
        let see = move |_: &AtomicBool| {
            let (began, before) = (Instant::now(), clock::thread_ns());
            while u128::from(clock::thread_ns() - before) < EACH.as_nanos() {}
            let _ = tell.send((began, Instant::now()));
            vec![]
        };
        let _inspector = Inspector::with(Duration::ZERO, see).unwrap();
        let looks: Vec<(Instant, Instant)> = told.iter().take(4).collect();
        assert!(looks.windows(2).all(|two| two[1].0 - two[0].1 >= EACH * REST), "{looks:?}");
    }
}
