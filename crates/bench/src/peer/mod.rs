// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of a subject: the same operations on the same data, each subject in its own way.
//!
//! Operations come in batches of one virtual call, so that neither the call nor a way into C is
//! part of the figure. The loops around them are the functions below for Rust and `c/reader.h` for
//! C, statement by statement the same.

mod arc_swap;
mod brcu;
mod c;
mod epoch;
pub mod floor;
mod haphazard;
mod headers;
mod map;
pub mod reprieve;
mod rwlock;
mod seize;
mod side;
pub mod traversal;
#[cfg(urcu)]
pub mod urcu;

use crate::clock;
use crate::error::{Error, Result};
use crate::subject::{Kind, Side};
use crate::table::{Ledger, Node, Table, next_seed, value_of};
use side::{Online, Plainly};
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// A subject that works on one table.
pub trait Peer: Sync {
    /// A reader for the calling thread, which is registered as long as the reader lives.
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a>;

    /// A writer for the one thread that updates.
    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a>;
}

/// Read-side operations. Each returns how many of `n` results were wrong: all, if the subject does
/// not have the operation.
pub trait Reader {
    /// Sections with nothing inside. For QSBR forms: quiescent states.
    fn empty(&mut self, _n: u64) {}
    /// Lookups of random keys.
    fn lookups(&mut self, _seed: &mut u64, n: u64) -> u64 {
        n
    }
    /// Reads of the first node.
    fn gets(&mut self, n: u64) -> u64 {
        n
    }
}

/// Updates.
pub trait Writer {
    /// Replaces a key's node. The subject frees the old one at a time of its choice.
    fn replace(&mut self, key: u64);

    /// Replaces a key's node, waits until the old one may be freed, frees it, and returns the time
    /// that passed until then.
    ///
    /// By default, a grace period of the default domain.
    ///
    /// # Errors
    /// [`Error::Broken`] if that takes ten minutes.
    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        wait()
    }

    /// Adds a key, also one that the table does not have. Returns whether it is new; `false` if the
    /// subject does not have the operation.
    fn insert(&mut self, _key: u64) -> bool {
        false
    }

    /// Removes a key. Returns whether it was there; `false` if the subject cannot.
    fn remove(&mut self, _key: u64) -> bool {
        false
    }

    /// Hurries the freeing of all garbage; by default, runs the callbacks of the default domain.
    /// Called again and again, after the last reader has gone, until no garbage is left.
    fn drain(&mut self) {
        drain();
    }
}

/// Makes a subject.
pub fn make(kind: Kind) -> Box<dyn Peer> {
    match kind {
        Kind::Floor => Box::new(floor::Rust),
        Kind::FloorC => Box::new(floor::C),
        Kind::Restart => Box::new(reprieve::Restart),
        Kind::ByEights => Box::new(reprieve::ByEights),
        Kind::Protect => Box::new(reprieve::Protect),
        Kind::Plain => Box::new(reprieve::Plain),
        Kind::Qsbr => Box::new(reprieve::Qsbr),
        Kind::C(Side::Copied) => Box::new(headers::Restart),
        Kind::C(Side::Protected) => Box::new(headers::Protect),
        Kind::C(Side::Qsbr) => Box::new(headers::Qsbr),
        Kind::C(Side::Plain) => Box::new(headers::Plain),
        #[cfg(urcu)]
        Kind::Urcu(flavor) => Box::new(urcu::Urcu(flavor.functions())),
        #[cfg(not(urcu))]
        Kind::Urcu(_) => unreachable!("subject::choose leaves out what is not compiled in"),
        Kind::Traverse => Box::<traversal::Traverse>::default(),
        Kind::Brcu => Box::<brcu::Brcu>::default(),
        Kind::Crossbeam => Box::<epoch::Epochs<epoch::Crossbeam>>::default(),
        Kind::Sdd => Box::<epoch::Epochs<epoch::Sdd>>::default(),
        Kind::Seize => Box::<seize::Seize>::default(),
        Kind::SeizeFlushed => Box::new(seize::Seize::flushed()),
        Kind::Haphazard => Box::new(haphazard::Haphazard),
        Kind::ArcSwap => Box::<arc_swap::Swapped>::default(),
        Kind::Map(Side::Copied) => Box::<map::Mapped<map::Own, map::Copied>>::default(),
        Kind::Map(Side::Protected) => Box::<map::Mapped<map::Own, map::Protected>>::default(),
        Kind::Map(Side::Plain) => Box::<map::Mapped<map::Own, map::Sections<Plainly>>>::default(),
        Kind::Map(Side::Qsbr) => Box::<map::Mapped<map::Own, map::Sections<Online>>>::default(),
        Kind::Papaya => Box::<map::Mapped<papaya::HashMap<_, _, _>, map::Usual>>::default(),
        Kind::Scc => Box::<map::Mapped<scc::HashMap<_, _, _>, map::Usual>>::default(),
        Kind::DashMap => Box::<map::Mapped<dashmap::DashMap<_, _, _>, map::Usual>>::default(),
        #[cfg(urcu)]
        Kind::Lfht(flavor) => Box::new(map::Lfht::new(flavor.functions())),
        Kind::Ordered(Side::Qsbr) => {
            Box::<map::Mapped<map::Ordered, map::Sections<Online>>>::default()
        }
        Kind::Ordered(Side::Protected) => {
            Box::<map::Mapped<map::Ordered, map::Protected>>::default()
        }
        Kind::Ordered(_) => Box::<map::Mapped<map::Ordered, map::Sections<Plainly>>>::default(),
        Kind::SkipMap => {
            Box::<map::Mapped<crossbeam_skiplist::SkipMap<_, _>, map::Usual>>::default()
        }
        #[cfg(not(urcu))]
        Kind::Lfht(_) => unreachable!("as above"),
        Kind::StdRwLock => Box::<rwlock::Locked>::default(),
    }
}

/// The loop of [`Reader::lookups`]; `find` returns a value, 0 if there is none.
#[inline(always)]
fn lookups(
    table: &Table,
    seed: &mut u64,
    n: u64,
    mut find: impl FnMut(&AtomicPtr<Node>, u64) -> u64,
) -> u64 {
    let mut bad = 0;
    let mut s = *seed;
    for _ in 0..n {
        s = next_seed(s);
        let key = table.key(s);
        bad += (find(table.head(key), key) != value_of(key)) as u64;
    }
    *seed = s;
    bad
}

/// A loop of `n` operations of which `one` tells whether it went wrong.
#[inline(always)]
fn repeat(n: u64, mut one: impl FnMut() -> bool) -> u64 {
    let mut bad = 0;
    for _ in 0..n {
        bad += one() as u64;
    }
    bad
}

/// The same loop for subjects with a structure of their own: `wrong` tells whether the lookup of a
/// key went wrong.
#[inline(always)]
fn random_keys(table: &Table, seed: &mut u64, n: u64, mut wrong: impl FnMut(u64) -> bool) -> u64 {
    let mut s = *seed;
    let bad = repeat(n, || {
        s = next_seed(s);
        wrong(table.key(s))
    });
    *seed = s;
    bad
}

/// Finds a key's value in a chain, by the subject's own loads.
///
/// # Safety
/// What `load` returns stays valid until this returns.
#[inline(always)]
unsafe fn find(
    head: &AtomicPtr<Node>,
    key: u64,
    load: impl Fn(&AtomicPtr<Node>) -> *mut Node,
) -> u64 {
    let mut node = load(head);
    // SAFETY: the caller's promise.
    while let Some(here) = unsafe { node.as_ref() } {
        if here.key == key {
            return here.value;
        }
        node = load(&here.next);
    }
    0
}

/// Whether the first node is wrong.
///
/// # Safety
/// As [`find`].
#[inline(always)]
unsafe fn wrong(head: &AtomicPtr<Node>, load: impl Fn(&AtomicPtr<Node>) -> *mut Node) -> bool {
    // SAFETY: the caller's promise; a cell is never empty.
    let node = unsafe { &*load(head) };
    node.value != value_of(node.key)
}

/// Waits until `frees` nodes have been freed and returns the time from `start` to the last of them,
/// taken where it was freed. `nudge` does what a user of the subject can do to hurry it.
pub fn await_frees(
    ledger: &Ledger,
    frees: u64,
    start: u64,
    mut nudge: impl FnMut(),
) -> Result<Duration> {
    // By sleeps of this thread: one that has no CPU does not wait. At least ten minutes.
    const MOST: u32 = 12_000_000;
    let mut tries = 0u32;
    while ledger.freed() < frees {
        if tries == MOST {
            return Err(Error::Broken {
                subject: "a node".into(),
                what: "not freed within ten minutes".into(),
            });
        }
        nudge();
        match tries {
            // At once, then by sleeps that leave the CPU to the readers: the same patience for all.
            0..16 => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
        tries += 1;
    }
    Ok(Duration::from_nanos(ledger.last_free().saturating_sub(start)))
}

/// Times an update until the old node is freed, for subjects whose writers do not wait: see
/// [`await_frees`].
fn replace_and_await(
    table: &Table,
    replace: impl FnOnce(),
    nudge: impl FnMut(),
) -> Result<Duration> {
    let ledger = table.ledger();
    ledger.stamp_frees();
    let frees = ledger.freed() + ledger.garbage() + 1;
    let start = clock::now();
    replace();
    await_frees(ledger, frees, start, nudge)
}

/// Waits for a grace period of the default domain and returns how long it took.
fn wait() -> Result<Duration> {
    let start = clock::now();
    ::reprieve::synchronize_rcu();
    Ok(Duration::from_nanos(clock::now() - start))
}

/// Runs the callbacks of the default domain.
fn drain() {
    // Not called by a callback: it cannot fail.
    let _ = ::reprieve::rcu_barrier();
}

/// Times `wait`, then frees the node: for subjects whose writers wait.
fn wait_and_free(node: *mut Node, wait: impl FnOnce()) -> Result<Duration> {
    let start = clock::now();
    wait();
    let time = clock::now() - start;
    // SAFETY: unlinked, and a grace period has passed.
    unsafe { crate::table::free(node) };
    Ok(Duration::from_nanos(time))
}
