// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader threads around a writer: started together, warmed up, measured, stopped, joined, and
//! their garbage freed.
//!
//! A reader counts operations and its own CPU time between the first batch that it begins in the
//! measured phase and the last that it ends there. So the time per operation does not depend on
//! what else ran on the CPUs.

use crate::clock;
use crate::error::{Error, Result};
use crate::peer::{Peer, Reader, Writer};
use crate::subject::Kind;
use crate::table::{Table, next_seed};
use crate::threads::{self, Gate, Last};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Operations between two looks at the phase. QSBR readers announce a quiescent state as often.
pub const BATCH: u64 = 256;
/// Readers run this long before anything counts. Nobody measures in builds for tests.
pub const WARM_UP: Duration = Duration::from_millis(if cfg!(debug_assertions) { 5 } else { 100 });
/// Garbage of which no node is freed in so many looks, with no reader left, never will be. Most of
/// them come after a rest of 1 ms: ten minutes, in which this thread had its CPU.
const MOST_LOOKS: u32 = 600_000;

/// The operation that readers repeat.
#[derive(Clone, Copy)]
pub enum Work {
    Lookups,
    /// Lookups one by one: in long lists.
    Searches,
    #[cfg(test)]
    Gets,
    /// Replacements of random keys: each reader is a writer, of a structure that takes several.
    Replacements,
}

/// A writer in a reader's place.
struct Replacing<'a>(Box<dyn Writer + 'a>, &'a Table);

impl Reader for Replacing<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        for _ in 0..n {
            *seed = next_seed(*seed);
            self.0.replace(self.1.key(*seed));
        }
        0
    }
}

/// The work of the readers in the measured phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Operations.
    pub operations: u64,
    /// CPU time of all readers, in nanoseconds.
    pub cpu: u64,
    bad: u64,
}

impl Totals {
    /// CPU time per operation in nanoseconds.
    pub fn each(&self) -> f64 {
        self.cpu as f64 / self.operations.max(1) as f64
    }

    fn add(&mut self, other: &Totals) {
        self.operations += other.operations;
        self.cpu += other.cpu;
        self.bad += other.bad;
    }
}

const WARMING: u32 = 0;
const MEASURING: u32 = 1;
const STOPPED: u32 = 2;

/// Runs `body` on this thread, which is the writer, while `readers` threads do `work`. Returns the
/// value of `body` and what the readers did.
///
/// # Errors
/// What `body` returns; [`Error::Broken`] if a reader saw a wrong value or if memory is not freed
/// in the end.
pub fn run<R>(
    kind: Kind,
    table: &Table,
    readers: usize,
    work: Work,
    body: impl FnOnce(&mut dyn Writer) -> Result<R>,
) -> Result<(R, Totals)> {
    let peer = crate::peer::make(kind);
    let peer = &*peer;
    let phase = AtomicU32::new(WARMING);
    let (start, warm) = (Gate::default(), AtomicUsize::new(0));
    let mut writer = peer.writer(table);
    let (result, totals) = std::thread::scope(|scope| {
        // Also when the writer panics or a reader cannot be started.
        let stop = Last(|| {
            phase.store(STOPPED, Ordering::SeqCst);
            start.open(0);
        });
        let (start, warm, phase) = (&start, &warm, &phase);
        let read = move |i| read(peer, table, i as u64, work, (start, warm), phase);
        let handles = match threads::start(scope, readers, read) {
            Ok(handles) => handles,
            Err(error) => return (Err(error), Totals::default()),
        };
        start.open(readers);
        // Each has run before anything counts, however many there are.
        while warm.load(Ordering::SeqCst) < readers {
            std::thread::sleep(Gate::LOOK);
        }
        std::thread::sleep(WARM_UP);
        phase.store(MEASURING, Ordering::SeqCst);
        let result = body(&mut *writer);
        // A figure needs at least one batch of each reader, however long they wait for a CPU.
        while result.is_ok() && warm.load(Ordering::SeqCst) < 2 * readers {
            std::thread::sleep(Gate::LOOK);
        }
        drop(stop);
        let mut totals = Totals::default();
        for handle in handles {
            // A reader panics on no input; if one does, so does this thread.
            totals.add(&handle.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        }
        (result, totals)
    });
    finish(kind, table, writer, result, totals)
}

/// Frees what is left when the readers are gone, and checks that all went well.
fn finish<R>(
    kind: Kind,
    table: &Table,
    mut writer: Box<dyn Writer + '_>,
    result: Result<R>,
    totals: Totals,
) -> Result<(R, Totals)> {
    let drained = drain(&mut *writer, table);
    let broken = |what: String| Error::Broken { subject: kind.name().into(), what };
    if !drained {
        // The garbage's owner may still refer to it: an error must not make it a use after free.
        std::mem::forget(writer);
        return Err(broken(format!(
            "{} nodes are left, none of which was freed for ten minutes after the last reader had gone",
            table.ledger().garbage()
        )));
    }
    drop(writer);
    if totals.bad != 0 {
        return Err(broken(format!("{} of {} reads were wrong", totals.bad, totals.operations)));
    }
    match result {
        // The error comes from a function that does not know the subject's name.
        Err(Error::Broken { what, .. }) => Err(broken(what)),
        result => Ok((result?, totals)),
    }
}

fn drain(writer: &mut dyn Writer, table: &Table) -> bool {
    let (mut left, mut looks) = (table.ledger().garbage(), 0u32);
    loop {
        writer.drain();
        let garbage = table.ledger().garbage();
        if garbage == 0 {
            return true;
        }
        looks = if garbage == left { looks + 1 } else { 0 };
        left = garbage;
        match looks {
            MOST_LOOKS => return false,
            0..1000 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn read(
    peer: &dyn Peer,
    table: &Table,
    index: u64,
    work: Work,
    (start, warm): (&Gate, &AtomicUsize),
    phase: &AtomicU32,
) -> Totals {
    let mut reader = match work {
        Work::Replacements => Box::new(Replacing(peer.writer(table), table)),
        _ => peer.reader(table),
    };
    let mut seed = index * 7919 + 1;
    let (mut totals, mut began, mut measuring) = (Totals::default(), 0, false);
    start.pass();
    // Batches still to be counted in `warm`: the first, and the first that is measured.
    let (mut first, mut first_measured) = (true, true);
    loop {
        match phase.load(Ordering::Relaxed) {
            STOPPED => break,
            MEASURING if !measuring => {
                measuring = true;
                totals.operations = 0;
                began = clock::thread_cpu();
            }
            _ => {}
        }
        let (bad, done) = match work {
            Work::Lookups | Work::Replacements => (reader.lookups(&mut seed, BATCH), BATCH),
            Work::Searches => (reader.lookups(&mut seed, 1), 1),
            #[cfg(test)]
            Work::Gets => (reader.gets(BATCH), BATCH),
        };
        totals.bad += bad;
        totals.operations += done;
        if std::mem::take(&mut first) || measuring && std::mem::take(&mut first_measured) {
            warm.fetch_add(1, Ordering::SeqCst);
        }
    }
    if measuring {
        totals.cpu = clock::thread_cpu() - began;
    } else {
        totals.operations = 0;
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Side;

    /// Runs more readers than CPUs beside updates: no read is wrong, and no garbage is left.
    fn reads_right_and_frees_everything(kinds: &[Kind], work: Work, table: fn() -> Table) {
        let families = crate::subject::FAMILIES.map(str::to_owned);
        for kind in crate::subject::choose(kinds, &families).unwrap() {
            let table = table();
            let keys = table.keys();
            let ((), totals) = run(kind, &table, 4, work, |writer| {
                for i in 0..2000 {
                    writer.replace(i * 7 % keys);
                }
                for i in 0..3 {
                    writer.replace_and_wait(i % keys)?;
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(totals.bad, 0);
            assert!(totals.operations > 0 && totals.cpu > 0, "{}: {totals:?}", kind.name());
            assert_eq!(table.ledger().garbage(), 0, "{}", kind.name());
            // These use the nodes of the table, which the ledger counts.
            let own = Kind::ALL.contains(&kind)
                || matches!(kind, Kind::C(_) | Kind::ByEights | Kind::Traverse | Kind::Brcu);
            if own && kind != Kind::ArcSwap {
                assert!(table.ledger().freed() >= 2003, "{}", kind.name());
            }
        }
    }

    #[test]
    fn every_read_side_reads_right_and_frees_everything() {
        let chains: Vec<Kind> = Kind::ALL.into_iter().filter(|k| *k != Kind::ArcSwap).collect();
        reads_right_and_frees_everything(&chains, Work::Lookups, || Table::hash(64));
        reads_right_and_frees_everything(&Kind::ALL, Work::Gets, Table::cell);
        let headers = [Side::Copied, Side::Protected, Side::Plain, Side::Qsbr].map(Kind::C);
        reads_right_and_frees_everything(&headers, Work::Lookups, || Table::hash(64));
        reads_right_and_frees_everything(&[Kind::ByEights], Work::Lookups, || Table::hash(64));
        let parts = [Kind::Traverse, Kind::Brcu];
        reads_right_and_frees_everything(&parts, Work::Lookups, || Table::hash(64));
        reads_right_and_frees_everything(&parts, Work::Searches, || Table::list(1 << 12));
        reads_right_and_frees_everything(&headers, Work::Gets, Table::cell);
    }

    #[test]
    fn every_structure_reads_right_and_frees_everything() {
        let hash = || Table::hash(64);
        reads_right_and_frees_everything(&Kind::MAPS, Work::Lookups, hash);
        reads_right_and_frees_everything(&Kind::ORDERED, Work::Lookups, hash);
    }

    /// Otherwise a figure would show an operation that does nothing.
    #[test]
    fn what_a_subject_does_not_offer_is_an_error() {
        let pointer = run(Kind::ArcSwap, &Table::cell(), 1, Work::Lookups, |_| Ok(()));
        assert!(matches!(pointer, Err(Error::Broken { .. })), "{pointer:?}");
    }

    /// The readers' check can fail: here each node has a value that does not belong to its key.
    #[test]
    fn a_reader_that_sees_poison_is_an_error() {
        let table = Table::hash(64);
        for key in 0..table.keys() {
            let node = table.head(key).load(Ordering::Relaxed);
            // SAFETY: the nodes stay allocated, and there is no reader yet.
            unsafe { (&raw mut (*node).value).write_volatile(0xdead) };
        }
        let result = run(Kind::Floor, &table, 1, Work::Lookups, |_| Ok(()));
        assert!(matches!(result, Err(Error::Broken { .. })), "{result:?}");
    }
}
