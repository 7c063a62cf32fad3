// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory-entry cache, per grace-period engine ([IPC], table 3).
//!
//! Threads resolve paths of three components, each a search of a hash table by parent and name, as
//! the kernel's dcache does; after every sixteenth path a thread replaces the entry it found by a
//! new one, as a rename over it does, and the old entry is freed after a grace period. An iteration
//! is a fixed number of paths per thread; iterations begin every 25 ms, so that what an engine
//! costs beyond the paths shows as CPU time. Two figures, as in the paper: the CPU time that the
//! process uses, and the time from an iteration's beginning to the end of its last thread. The
//! paper gives CPU time as a share of the CPUs. Here it is that of an iteration: where iterations
//! take longer than 25 ms there are fewer of them, and shares are not of the same work.
//!
//! Domains have no cap here, so that each engine keeps its own pace; the ticks of `Ltimer` and
//! `Sched` are 10 ms (HZ=100, as the kernels of 2002). The lock row is what the dcache had before:
//! a reader-writer lock around each search. An update holds it for one store: it searches,
//! allocates and frees outside.

use super::{Prepared, column, thread_label};
use crate::clock;
use crate::error::{Error, Result};
use crate::machine;
use crate::options::Options;
use crate::readers::WARM_UP;
use crate::result::{Recorder, Unit, median};
use crate::schedule::Job;
use crate::subject::Class;
use crate::table::next_seed;
use crate::threads::{self, Gate, Last};
use reprieve::{Cap, Domain, Engine, Head, Lookup, ReadSide, Section};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, RwLock};
use std::time::{Duration, Instant};

const BUCKETS: usize = 8192;
/// Directories of the root, directories of each of those, files of each of those.
const SHAPE: [u64; 3] = [16, 16, 16];
/// Paths per thread and iteration.
const PATHS: u64 = 80_000;
/// Paths between two updates of a thread.
const PATHS_PER_UPDATE: u64 = 16;
const PERIOD: Duration = Duration::from_millis(25);
const TICK: Duration = Duration::from_millis(10);
const ROOT: u64 = 1;
const POISON: u64 = 0xdead_dead_dead_dead;

/// A name of up to 32 bytes, padded with zeroes.
type Name = [u64; 4];

#[repr(C)]
struct Entry {
    head: Head,
    next: AtomicPtr<Entry>,
    parent: u64,
    hash: u64,
    name: Name,
    inode: u64,
    freed: *const AtomicU64,
}

/// How an entry is found.
#[derive(Clone, Copy)]
enum Side {
    Plain,
    Restartable,
    Lock,
}

struct Cache {
    domain: Domain,
    side: Side,
    lock: RwLock<()>,
    buckets: Box<[AtomicPtr<Entry>]>,
    /// A single lock for all buckets: the benchmark measures readers.
    writer: Mutex<u64>,
    freed: Box<AtomicU64>,
}

/// `d` or `f` and a number, in decimal: what a path would say.
fn name(kind: u8, number: u64) -> Name {
    let mut bytes = [0u8; 32];
    bytes[0] = kind;
    let (mut at, mut n) = (1, number);
    loop {
        bytes[at] = b'0' + (n % 10) as u8;
        (at, n) = (at + 1, n / 10);
        if n == 0 {
            break;
        }
    }
    std::array::from_fn(|i| u64::from_ne_bytes(std::array::from_fn(|j| bytes[8 * i + j])))
}

/// The hash of a name in its directory.
#[inline(always)]
fn hash(parent: u64, name: &Name) -> u64 {
    let mut h = parent.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for word in name {
        h = (h ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 32;
    }
    h
}

/// The inode of `name` in `parent`: follows from both, so that a path can be checked.
fn inode(parent: u64, name: &Name) -> u64 {
    hash(parent, name) | 2
}

/// Searches a chain.
struct Find<'a> {
    bucket: &'a AtomicPtr<Entry>,
    parent: u64,
    hash: u64,
    name: Name,
}

// SAFETY: inlined, no panic, loads through the section only; entries are freed through the domain
// (or, with the lock, when no reader can have found them).
unsafe impl Lookup for Find<'_> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        let mut entry = section.load(self.bucket);
        while !entry.is_null() {
            // SAFETY: alive in this section.
            unsafe {
                let word = |i: usize| section.read((&raw const (*entry).name).cast::<u64>().add(i));
                if section.read(&raw const (*entry).hash) == self.hash
                    && section.read(&raw const (*entry).parent) == self.parent
                    && word(0) == self.name[0]
                    && word(1) == self.name[1]
                    && word(2) == self.name[2]
                    && word(3) == self.name[3]
                {
                    return section.read(&raw const (*entry).inode);
                }
                entry = section.load(&(*entry).next);
            }
        }
        0
    }
}

unsafe extern "C" fn free_entry(head: *mut Head) {
    // SAFETY: the first field of an entry that came from a box; nobody can see it any more.
    unsafe {
        let entry = head.cast::<Entry>();
        let freed = &*(*entry).freed;
        (&raw mut (*entry).inode).write_volatile(POISON);
        drop(Box::from_raw(entry));
        freed.fetch_add(1, Ordering::Release);
    }
}

impl Cache {
    fn new(engine: Engine, single: bool, side: Side) -> Result<Cache> {
        let domain = Domain::builder().engine(engine).single_list(single).cap(Cap::NONE).build()?;
        let cache = Cache {
            domain,
            side,
            lock: RwLock::new(()),
            buckets: (0..BUCKETS).map(|_| AtomicPtr::new(null_mut())).collect(),
            writer: Mutex::new(0),
            freed: Box::default(),
        };
        for a in 0..SHAPE[0] {
            let top = cache.add(ROOT, &name(b'd', a));
            for b in 0..SHAPE[1] {
                let middle = cache.add(top, &name(b'd', b));
                for c in 0..SHAPE[2] {
                    cache.add(middle, &name(b'f', c));
                }
            }
        }
        Ok(cache)
    }

    fn bucket(&self, hash: u64) -> &AtomicPtr<Entry> {
        &self.buckets[hash as usize % BUCKETS]
    }

    /// A new entry before `next`.
    fn entry(&self, parent: u64, name: &Name, next: *mut Entry) -> *mut Entry {
        Box::into_raw(Box::new(Entry {
            head: Head::new(),
            next: AtomicPtr::new(next),
            parent,
            hash: hash(parent, name),
            name: *name,
            inode: inode(parent, name),
            freed: &raw const *self.freed,
        }))
    }

    fn add(&self, parent: u64, name: &Name) -> u64 {
        let bucket = self.bucket(hash(parent, name));
        bucket.store(self.entry(parent, name, bucket.load(Ordering::Relaxed)), Ordering::Release);
        inode(parent, name)
    }

    fn find(&self, parent: u64, name: &Name) -> u64 {
        let hash = hash(parent, name);
        let find = Find { bucket: self.bucket(hash), parent, hash, name: *name };
        // SAFETY: entries are freed through the domain, or when no reader that may have found them
        // is in the lock.
        unsafe {
            match self.side {
                Side::Plain => {
                    let guard = self.domain.read_lock();
                    find.run(guard.section())
                }
                Side::Restartable => self.domain.lookup(&find),
                Side::Lock => {
                    let _held = self.lock.read().unwrap_or_else(|e| e.into_inner());
                    // A section of the domain costs next to nothing beside the lock, and lends its
                    // loads.
                    find.run(self.domain.read_lock().section())
                }
            }
        }
    }

    /// Replaces a file's entry by a new one.
    fn renew(&self, parent: u64, name: &Name) {
        let hash = hash(parent, name);
        let mut updates = self.writer.lock().unwrap_or_else(|e| e.into_inner());
        *updates += 1;
        let mut link = self.bucket(hash);
        // SAFETY: only the holder of the writers' lock unlinks.
        let entry = unsafe {
            loop {
                let entry = link.load(Ordering::Relaxed);
                if (*entry).hash == hash && (*entry).parent == parent && (*entry).name == *name {
                    break entry;
                }
                link = &(*entry).next;
            }
        };
        // SAFETY: as above.
        let next = unsafe { (*entry).next.load(Ordering::Relaxed) };
        let new = self.entry(parent, name, next);
        // A single store unlinks the old entry and links the new one: no reader misses the file
        // between the two.
        match self.side {
            Side::Lock => {
                let held = self.lock.write().unwrap_or_else(|e| e.into_inner());
                link.store(new, Ordering::Release);
                drop(held);
                drop(updates);
                // SAFETY: unlinked here, once; readers that had found it have left the lock, and
                // hold no reference.
                unsafe { free_entry(entry.cast()) };
            }
            Side::Plain | Side::Restartable => {
                link.store(new, Ordering::Release);
                drop(updates);
                // SAFETY: unlinked here, once; readers are out of it after a grace period.
                unsafe { self.domain.call_rcu(entry.cast(), free_entry, size_of::<Entry>()) };
            }
        }
    }

    /// A thread's part of an iteration: paths of random files, and updates of files that no other
    /// thread updates. Returns how many were wrong.
    fn iterate(&self, thread: u64, seed: &mut u64) -> u64 {
        let mut bad = 0;
        for i in 0..PATHS {
            *seed = next_seed(*seed);
            let bits = *seed >> 33;
            let names = [
                name(b'd', bits % SHAPE[0]),
                name(b'd', (bits >> 8) % SHAPE[1]),
                name(b'f', (bits >> 16) % SHAPE[2]),
            ];
            let (mut parent, mut at) = (ROOT, ROOT);
            for name in &names {
                parent = at;
                at = self.find(parent, name);
            }
            bad += (at != inode(parent, &names[2])) as u64;
            if i % PATHS_PER_UPDATE == thread % PATHS_PER_UPDATE && at != 0 {
                self.renew(parent, &names[2]);
            }
        }
        bad
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for bucket in &self.buckets {
            let mut next = bucket.load(Ordering::Relaxed);
            while !next.is_null() {
                // SAFETY: linked entries are nobody else's any more.
                let entry = unsafe { Box::from_raw(next) };
                next = entry.next.load(Ordering::Relaxed);
            }
        }
        // The domain goes after this, and waits for its callbacks.
    }
}

const SUBJECTS: [(&str, Class, Engine, bool, Side); 7] = [
    ("Restart, restartable", Class::Reprieve, Engine::Restart, false, Side::Restartable),
    ("Restart, plain", Class::Reprieve, Engine::Restart, false, Side::Plain),
    ("Poll, per-CPU lists", Class::Reprieve, Engine::Poll, false, Side::Plain),
    ("Poll, one list", Class::Reprieve, Engine::Poll, true, Side::Plain),
    ("Ltimer", Class::Reprieve, Engine::Ltimer { tick: TICK }, false, Side::Plain),
    ("Sched", Class::Reprieve, Engine::Sched { tick: TICK }, false, Side::Plain),
    ("rwlock (std)", Class::Peer, Engine::Poll, false, Side::Lock),
];

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let mut recorder = Recorder::new(vec![
        column("CPU per iteration", Unit::Milliseconds),
        column("iteration", Unit::Milliseconds),
        column("grace period, mean", Unit::Milliseconds),
    ]);
    crate::subject::choose(&[], &options.against)?;
    let locks = options.against.iter().any(|a| a == "rwlock");
    let mut jobs = vec![];
    for &n in &options.readers {
        for (name, class, engine, single, side) in SUBJECTS {
            if class == Class::Peer && !locks {
                continue;
            }
            let group = thread_label(n);
            let row = recorder.row(&group, name, class);
            jobs.push(Job {
                what: format!("{group}, {name}"),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    let cache = Cache::new(engine, single, side)?;
                    let sample = sample(&cache, n, length, options)?;
                    recorder.add(row, 0, sample.cpu_per_iteration());
                    recorder.add(row, 1, median(&sample.times));
                    let grace = cache.domain.stats().grace_periods;
                    if grace.count > 0 {
                        recorder.add(row, 2, grace.mean().as_secs_f64() * 1e3);
                    }
                    Ok(())
                }),
            });
        }
    }
    let notes = vec![
        format!(
            "an iteration is {PATHS} paths of three components per thread, with an update after every {PATHS_PER_UPDATE}th; one begins every {0} ms, or when the one before has ended. CPU: of all threads; {1} ms are 100 % of {2} CPUs where iterations take no longer than {0} ms",
            PERIOD.as_millis(),
            PERIOD.as_millis() * machine::cpus() as u128,
            machine::cpus()
        ),
        "no cap on waiting callbacks; ticks of 10 ms".into(),
        "the paper's figures (4 CPUs of 2002, % and ms): rcu-ltimer 77.52, 22.47; rcu-poll with per-CPU lists 84.20, 22.95; rcu-sched 81.95, 22.46".into(),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

struct Sample {
    /// CPU time of the whole process, in ns.
    cpu: u64,
    /// Times of iterations, in ms.
    times: Vec<f64>,
}

impl Sample {
    /// In ms.
    fn cpu_per_iteration(&self) -> f64 {
        self.cpu as f64 / 1e6 / self.times.len() as f64
    }
}

fn sample(cache: &Cache, threads: usize, length: Duration, options: &Options) -> Result<Sample> {
    let (line, ready) = (Barrier::new(threads + 1), Gate::default());
    let stop = AtomicBool::new(false);
    let bad = AtomicU64::new(0);
    let sample = std::thread::scope(|scope| -> Result<Sample> {
        let (line, ready, stop, bad) = (&line, &ready, &stop, &bad);
        let work = move |thread: usize| {
            let mut seed = thread as u64 * 7919 + 1;
            ready.pass();
            // A thread could not be started: the line would wait for it.
            if stop.load(Ordering::SeqCst) {
                return;
            }
            loop {
                line.wait();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                bad.fetch_add(cache.iterate(thread as u64, &mut seed), Ordering::Relaxed);
                line.wait();
            }
        };
        let _end = Last(|| {
            stop.store(true, Ordering::SeqCst);
            ready.open(0);
        });
        threads::start(scope, threads, work)?;
        ready.open(threads);
        let iterate = || {
            let start = Instant::now();
            line.wait();
            line.wait();
            let time = start.elapsed();
            std::thread::sleep(PERIOD.saturating_sub(time));
            time.as_secs_f64() * 1e3
        };
        let until = |length: Duration| {
            let end = Instant::now() + length;
            let mut times = vec![iterate()];
            while Instant::now() < end && options.check().is_ok() {
                times.push(iterate());
            }
            times
        };
        until(WARM_UP);
        let cpu = clock::process_cpu();
        let times = until(length);
        let cpu = clock::process_cpu() - cpu;
        stop.store(true, Ordering::Relaxed);
        line.wait();
        Ok(Sample { cpu, times })
    });
    cache.domain.barrier()?;
    let sample = sample?;
    options.check()?;
    let broken = |what: String| Err(Error::Broken { subject: "the dcache".into(), what });
    let bad = bad.load(Ordering::Relaxed);
    if bad != 0 {
        return broken(format!("{bad} paths were wrong"));
    }
    let updates = *cache.writer.lock().unwrap_or_else(|e| e.into_inner());
    let freed = cache.freed.load(Ordering::Acquire);
    if updates != freed {
        return broken(format!("{} of {updates} entries were not freed", updates - freed));
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the same time the slow one does half of the work.
    #[test]
    fn cpu_time_is_that_of_the_same_work() {
        let quick = Sample { cpu: 80_000_000, times: vec![20.0, 20.0] };
        let slow = Sample { cpu: 80_000_000, times: vec![40.0] };
        assert_eq!([quick.cpu_per_iteration(), slow.cpu_per_iteration()], [40.0, 80.0]);
    }
}
