// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a semaphore set's id to the set: the change of the System V IPC paper by itself. Before it
//! a lock stood before the array of ids; after it readers find the set in a read-side section.
//!
//! The array, the objects and the search are those of `crates/ipc` in every row; only what protects
//! them differs. Threads look up sets at random and count; beside them one thread makes and removes
//! a set each millisecond, under the same protection, as far as a lock lets it in. No thread takes
//! a set's own lock.

use super::{Prepared, column, thread_label};
use crate::clock;
use crate::error::{Error, Result};
use crate::locks::{Lock, Style, Subject, Visit};
use crate::options::Options;
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::Class;
use crate::sysv::Stage;
use crate::table::next_seed;
use crate::threads::{self, Last};
use reprieve_ipc::Namespace;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Peers that `--against` takes.
pub const FAMILIES: [&str; 4] = ["ids-lock", "pthread", "std", "parking_lot"];

/// Sets to look up.
const SETS: usize = 128;
/// Lookups between two looks at the clock.
const BATCH: u64 = 256;

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let known = |a: &&String| !FAMILIES.contains(&a.as_str());
    if let Some(unknown) = options.against.iter().find(known) {
        let families = FAMILIES.join(", ");
        return Err(Error::Usage(format!(
            "--against {unknown}: no such lock; there are {families}"
        )));
    }
    let stage = Rc::new(Stage::new()?);
    let threads = &options.readers;
    let columns = threads
        .iter()
        .map(|&n| Column { more_is_better: true, ..column(thread_label(n), Unit::MegaPerSecond) });
    let mut recorder = Recorder::new(columns.collect());
    let wanted = |family: &str| options.against.iter().any(|a| a == family);
    let mut subjects = vec![(Protection::Section, "read-side section".into(), Class::Reprieve)];
    if wanted("ids-lock") {
        subjects.push((Protection::IdsLock, "the ids' robust lock".into(), Class::Peer));
    }
    for lock in Subject::ALL {
        let style = match lock.style() {
            Style::Spin => continue,
            Style::Block => " mutex",
            // Their names say so.
            Style::ReadWrite => "",
        };
        if lock.family().is_some_and(|family| FAMILIES.contains(&family) && wanted(family)) {
            let name = format!("{}{style}", lock.name());
            subjects.push((Protection::Lock(lock), name, Class::Peer));
        }
    }
    let rows: Vec<_> =
        subjects.iter().map(|(_, name, class)| recorder.row("", name, *class)).collect();
    let mut jobs = vec![];
    for (column, &threads) in threads.iter().enumerate() {
        for ((protection, name, _), &row) in subjects.iter().zip(&rows) {
            let (stage, protection) = (stage.clone(), *protection);
            let what = format!("{}, {name}", thread_label(threads));
            jobs.push(Job::figure(what, 1.0, (row, column), move |length| {
                let scene = Scene { on: stage.namespace(), threads, length, options };
                let rate = match protection {
                    Protection::Section => scene.run(&Section(stage.namespace())),
                    Protection::IdsLock => scene.run(&IdsLock(stage.namespace())),
                    Protection::Lock(lock) => lock.visit(scene),
                }?;
                Ok(rate / 1e6)
            }));
        }
    }
    let notes = vec!["lookups per second of all threads; one more thread makes and removes a set each millisecond, where the lock lets it in".into()];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

#[derive(Clone, Copy)]
enum Protection {
    Section,
    IdsLock,
    Lock(Subject),
}

/// How ids are looked up, and changed.
trait Lookup: Sync {
    fn finds(&self, id: i32) -> bool;
    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        change()
    }
}

struct Section(Namespace);

impl Lookup for Section {
    #[inline]
    fn finds(&self, id: i32) -> bool {
        self.0.finds_set(id) == Ok(true)
    }
}

struct IdsLock(Namespace);

impl Lookup for IdsLock {
    #[inline]
    fn finds(&self, id: i32) -> bool {
        self.0.finds_set_under_lock(id) == Ok(true)
    }
}

/// Nothing else is in these cache lines: what lookups read beside the lock would go with it.
#[repr(align(128))]
struct Locked<L>(Namespace, L);

impl<L: Lock> Lookup for Locked<L> {
    #[inline]
    fn finds(&self, id: i32) -> bool {
        // SAFETY: sets are removed by `change` only.
        self.1.read(|| unsafe { self.0.finds_set_unprotected(id) } == Ok(true))
    }

    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        self.1.write(change)
    }
}

struct Scene<'a> {
    on: Namespace,
    threads: usize,
    length: Duration,
    options: &'a Options,
}

impl Visit for Scene<'_> {
    type Output = Result<f64>;
    fn visit<L: Lock>(self) -> Result<f64> {
        self.run(&Locked(self.on, L::new()))
    }
}

/// A set, removed when dropped.
struct Set(Namespace, i32);

impl Set {
    fn new(on: Namespace) -> Result<Set> {
        let id = on.semget(libc::IPC_PRIVATE, 1, 0o600);
        id.map(|id| Set(on, id)).map_err(|error| broken(&format!("semget: {error}")))
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let _ = self.0.remove_sem(self.1);
    }
}

fn broken(what: &str) -> Error {
    Error::Broken { subject: "a lookup".into(), what: what.into() }
}

/// The count of a thread, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Scene<'_> {
    /// Lookups per second of all threads.
    fn run(&self, by: &impl Lookup) -> Result<f64> {
        let sets = (0..SETS).map(|_| Set::new(self.on)).collect::<Result<Vec<_>>>()?;
        let ids: Vec<i32> = sets.iter().map(|set| set.1).collect();
        let counts: Vec<Count> = (0..self.threads).map(|_| Count::default()).collect();
        let (stop, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
        let work = |number: usize| {
            let mut seed = number as u64 + 1;
            while !stop.load(Relaxed) {
                let mut missed = 0;
                for _ in 0..BATCH {
                    seed = next_seed(seed);
                    missed += u64::from(!by.finds(ids[(seed >> 32) as usize % SETS]));
                }
                if missed != 0 {
                    wrong.fetch_add(missed, Relaxed);
                }
                counts[number].0.fetch_add(BATCH, Relaxed);
            }
        };
        let sum = || counts.iter().map(|count| count.0.load(Relaxed)).sum::<u64>();
        let change = || -> Result<()> {
            let set = by.change(|| Set::new(self.on))?;
            let id = set.1;
            if !by.finds(id) {
                return Err(broken("a new set is not found"));
            }
            by.change(|| drop(set));
            if by.finds(id) { Err(broken("a removed set is found")) } else { Ok(()) }
        };
        // On a thread of its own: a lock that lets readers go first may keep it out all the time.
        let changes = || -> Result<()> {
            while !stop.load(Relaxed) {
                change()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let pass = |length: Duration, before: u64| -> Result<()> {
            let end = Instant::now() + length;
            // On a busy machine longer, until there is something to count.
            while Instant::now() < end || sum() == before {
                self.options.check()?;
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(20)));
            }
            Ok(())
        };
        let rate = std::thread::scope(|scope| {
            let end = Last(|| stop.store(true, Relaxed));
            threads::start(scope, self.threads, work)?;
            let changer = threads::start(scope, 1, |_| changes())?;
            let measured = || -> Result<f64> {
                pass(self.length / 8, 0)?;
                let (before, start) = (sum(), clock::now());
                pass(self.length, before)?;
                Ok((sum() - before) as f64 * 1e9 / (clock::now() - start) as f64)
            };
            let rate = measured();
            drop(end);
            for changer in changer {
                changer.join().unwrap_or_else(|_| Err(broken("a thread failed")))?;
            }
            rate
        })?;
        match wrong.into_inner() {
            0 => Ok(rate),
            n => Err(broken(&format!("{n} sets that are there were not found"))),
        }
    }
}
