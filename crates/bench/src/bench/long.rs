// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long traversals: searches of a list of 2^18 nodes, while a writer replaces nodes near its head
//! as fast as it can. The benchmark, and one of the peers, are those of HP-BRCU (SPAA 2024).
//!
//! And scans of a map with 2^20 entries, beside 64 threads that replace entries.

use super::{Prepared, column, reader_label, replace_always};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::peer::traversal::CAP;
use crate::readers::{self, Work};
use crate::result::{Column, Recorder, Unit};
use crate::schedule::Job;
use crate::subject::{Class, Flavor, Kind, choose};
use crate::table::{Table, next_seed};
use crate::threads;
use reprieve::structures::Map;
use reprieve::{Cap, Domain};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An unoptimized build measures nothing: its structures are small, and its tests end.
const SMALLER: u32 = if cfg!(debug_assertions) { 7 } else { 0 };
/// Nodes of the list.
const LENGTH: u64 = 1 << (18 - SMALLER);
/// The writer replaces one of so many at the head.
const NEAR: u64 = 64;
/// Entries of the map, and threads that replace them.
const ENTRIES: u64 = 1 << (20 - SMALLER);
const WRITERS: usize = 64 >> (SMALLER / 2);
/// Bytes of garbage beyond which they free it themselves.
const SOFT: u64 = 1 << 19;

/// One for each column.
type Figures = [Option<f64>; 4];

const SUBJECTS: [Kind; 8] = [
    Kind::Traverse,
    Kind::Restart,
    Kind::Plain,
    Kind::Brcu,
    Kind::Urcu(Flavor::Qsbr),
    Kind::Crossbeam,
    Kind::Seize,
    Kind::Haphazard,
];

pub fn prepare(options: &Options) -> Result<Prepared<'_>> {
    let rate = |title: &str| Column { more_is_better: true, ..column(title, Unit::KiloPerSecond) };
    let mut recorder = Recorder::new(vec![
        rate("traversals"),
        column("CPU per traversal", Unit::Microseconds),
        column("peak garbage", Unit::Megabytes),
        rate("updates"),
    ]);
    let mut jobs = vec![];
    let kinds = choose(&SUBJECTS, &options.against)?;
    for &n in &options.readers {
        for &kind in &kinds {
            let row = recorder.row(&reader_label(n), kind.name(), kind.class());
            jobs.push(Job {
                what: format!("traversals, {}, {}", reader_label(n), kind.name()),
                weight: 1.0,
                run: Box::new(move |length, recorder| {
                    add(recorder, row, sample(kind, n, length, options)?);
                    Ok(())
                }),
            });
        }
    }
    let ours = Rc::new(OnceCell::new());
    for (name, section) in [("Map, scanned", false), ("Map, scanned in a section", true)] {
        let ours = ours.clone();
        let run = move |length| {
            let (domain, map) = ours.get_or_init(make_map);
            let scan = || {
                if section {
                    map.iter_in(&domain.read_lock()).map(|(_, value)| *value).sum::<u64>()
                } else {
                    map.iter().map(|item| *item).sum()
                }
            };
            // Garbage of what ran before.
            let _ = domain.barrier();
            let garbage = || domain.stats().waiting_bytes;
            scans(scan, |key| _ = map.insert(key, key), garbage, length, options)
        };
        jobs.push(scan_job(&mut recorder, name, Class::Reprieve, run));
    }
    if options.against.iter().any(|peer| peer == "papaya") {
        let peer = OnceCell::new();
        let run = move |length| {
            let map = peer.get_or_init(|| {
                let map = papaya::HashMap::with_capacity(ENTRIES as usize);
                (0..ENTRIES).for_each(|key| _ = map.pin().insert(key, Counted(key)));
                map
            });
            let scan = || map.pin().iter().map(|(_, value)| value.0).sum();
            let insert = |key| {
                RETIRED.fetch_add(1, Ordering::Relaxed);
                map.pin().insert(key, Counted(key));
            };
            let before = RETIRED.load(Ordering::Relaxed) - DROPPED.load(Ordering::Relaxed);
            let garbage = || {
                let dropped = DROPPED.load(Ordering::Relaxed);
                (RETIRED.load(Ordering::Relaxed).saturating_sub(dropped + before)) * PEERS_BYTES
            };
            scans(scan, insert, garbage, length, options)
        };
        jobs.push(scan_job(&mut recorder, "papaya", Class::Peer, run));
    }
    let notes = vec![
        format!(
            "a list of {LENGTH} nodes of 64 bytes; traversal: in parts, with a soft cap of {CAP} callbacks, the others as they come"
        ),
        format!(
            "scans: a map of {ENTRIES} entries, which {WRITERS} threads replace; scans count as traversals"
        ),
    ];
    Ok(Prepared { notes, recorder, jobs, crowds: vec![] })
}

fn sample(kind: Kind, readers: usize, length: Duration, options: &Options) -> Result<Figures> {
    let table = Table::list(LENGTH);
    let ((peak, updates, seconds), totals) =
        readers::run(kind, &table, readers, Work::Searches, |writer| {
            let key = |seed| LENGTH - 1 - table.key(seed) % NEAR;
            replace_always(writer, &table, key, length, options)
        })?;
    let garbage = (peak * table.ledger().node_bytes()) as f64 / 1e6;
    let per_ms = |n: u64| Some(n as f64 / seconds / 1e3);
    let each = (totals.operations != 0).then(|| totals.each() / 1e3);
    Ok([per_ms(totals.operations), each, Some(garbage), per_ms(updates)])
}

fn add(recorder: &mut Recorder, row: usize, figures: Figures) {
    for (column, figure) in figures.into_iter().enumerate() {
        figure.into_iter().for_each(|value| recorder.add(row, column, value));
    }
}

type Entries = Map<u64, u64, Arc<Domain>>;

fn make_map() -> (Arc<Domain>, Entries) {
    let cap = Cap { bytes: SOFT, ..Cap::SOFT };
    let domain = Domain::builder().soft_cap(cap).build();
    let domain = Arc::new(domain.expect("a process may have a thousand domains"));
    let map = Map::builder().domain(domain.clone()).chains(ENTRIES as usize).build();
    (0..ENTRIES).for_each(|key| _ = map.insert(key, key));
    (domain, map)
}

/// A peer's garbage is known by the values that are dropped.
struct Counted(u64);
static RETIRED: AtomicU64 = AtomicU64::new(0);
static DROPPED: AtomicU64 = AtomicU64::new(0);
/// What each counts for: key, value, and a header of two words.
const PEERS_BYTES: u64 = 32;

impl Drop for Counted {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

fn scan_job<'a>(
    recorder: &mut Recorder,
    name: &str,
    class: Class,
    run: impl Fn(Duration) -> Result<Figures> + 'a,
) -> Job<'a> {
    let row = recorder.row("scans, 64 writers", name, class);
    Job {
        what: format!("scans, {name}"),
        weight: 1.0,
        run: Box::new(move |length, recorder| {
            add(recorder, row, run(length)?);
            Ok(())
        }),
    }
}

fn scans(
    scan: impl Fn() -> u64,
    replace: impl Fn(u64) + Sync,
    garbage: impl Fn() -> u64 + Sync,
    length: Duration,
    options: &Options,
) -> Result<Figures> {
    /// Updates between two looks at the garbage.
    const OFTEN: u64 = 256;
    let (stop, peak, updates) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let write = |first: usize| {
        let mut seed = first as u64 * 7919 + 1;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..OFTEN {
                seed = next_seed(seed);
                replace((seed >> 33) % ENTRIES);
            }
            updates.fetch_add(OFTEN, Ordering::Relaxed);
            peak.fetch_max(garbage(), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let end = threads::Last(|| stop.store(true, Ordering::Relaxed));
        let writers = threads::start(scope, WRITERS, write)?;
        let start = Instant::now();
        let mut done = 0;
        while start.elapsed() < length || done == 0 {
            options.check()?;
            let sum = scan();
            if sum != ENTRIES * (ENTRIES - 1) / 2 {
                let (subject, what) = ("a scan".into(), format!("it adds up to {sum}"));
                return Err(Error::Broken { subject, what });
            }
            done += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(end);
        writers.into_iter().for_each(|w| w.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        let per_ms = |n: u64| Some(n as f64 / seconds / 1e3);
        let (peak, updates) = (peak.load(Ordering::Relaxed), updates.load(Ordering::Relaxed));
        Ok([per_ms(done), None, Some(peak as f64 / 1e6), per_ms(updates)])
    })
}
