// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps from keys to values of 64 bits.
//!
//! Hash maps, all with one hash function: this project's `Map` by each read side, papaya, scc,
//! dashmap, liburcu's rculfhash. All start small and grow by themselves, as they do by default.
//!
//! Maps in the order of their keys: this project's `OrderedMap`, and crossbeam's skip list.

use super::side::Enter;
#[cfg(urcu)]
use super::urcu::{Functions, Thread};
use super::{Peer, Reader, Writer, drain, random_keys};
#[cfg(urcu)]
use crate::error::Result;
use crate::hash::Mixing;
use crate::table::{Table, value_of};
use crossbeam_skiplist::SkipMap;
use dashmap::DashMap;
use papaya::HashMap as Papaya;
use reprieve::structures::{Global, Map, OrderedMap};
#[cfg(urcu)]
use std::ffi::c_void;
use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::OnceLock;
#[cfg(urcu)]
use std::time::Duration;

/// A map that a peer shares among its threads. The first reader or writer fills it with the table's
/// keys.
pub trait Shared: Sync + Send {
    fn new() -> Self;
    /// Whether the key is new.
    fn insert(&self, key: u64) -> bool;
    /// Whether the key was there.
    fn remove(&self, key: u64) -> bool;
    /// Hurries the freeing of all garbage.
    fn drain(&self) {}
}

/// How a map is read.
pub trait Read<M> {
    /// The calling thread's way to read.
    fn new() -> Self;
    /// The value of a key that is in the map.
    fn find(&self, map: &M, key: u64) -> u64;
    /// Ends a batch (QSBR: a quiescent state).
    fn after(&mut self) {}
}

/// A map, read in that way.
pub struct Mapped<M, R>(OnceLock<M>, PhantomData<fn() -> R>);

impl<M, R> Default for Mapped<M, R> {
    fn default() -> Self {
        Mapped(OnceLock::new(), PhantomData)
    }
}

impl<M: Shared, R> Mapped<M, R> {
    fn map(&self, table: &Table) -> &M {
        self.0.get_or_init(|| {
            let map = M::new();
            (0..table.keys()).for_each(|key| assert!(map.insert(key), "a new map is empty"));
            map
        })
    }
}

impl<M: Shared, R: Read<M>> Peer for Mapped<M, R> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Looking(self.map(table), table, R::new()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Changing(self.map(table)))
    }
}

struct Looking<'a, M, R>(&'a M, &'a Table, R);

impl<M, R: Read<M>> Reader for Looking<'_, M, R> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        let bad = random_keys(self.1, seed, n, |key| self.2.find(self.0, key) != value_of(key));
        self.2.after();
        bad
    }
}

struct Changing<'a, M>(&'a M);

impl<M: Shared> Writer for Changing<'_, M> {
    fn replace(&mut self, key: u64) {
        self.0.insert(key);
    }

    fn insert(&mut self, key: u64) -> bool {
        self.0.insert(key)
    }

    fn remove(&mut self, key: u64) -> bool {
        self.0.remove(key)
    }

    fn drain(&mut self) {
        self.0.drain();
    }
}

pub type Own = Map<u64, u64, Global, Mixing>;
pub type Ordered = OrderedMap<u64, u64>;

/// This project's maps, of which each `new` makes an empty one.
macro_rules! ours {
    ($($map:ty: $new:expr;)*) => { $(
        impl Shared for $map {
            fn new() -> Self {
                $new
            }

            fn insert(&self, key: u64) -> bool {
                <$map>::insert(self, key, value_of(key)).is_none()
            }

            fn remove(&self, key: u64) -> bool {
                <$map>::remove(self, &key).is_some()
            }

            fn drain(&self) {
                drain();
            }
        }

        impl<E: Enter> Read<$map> for Sections<E> {
            fn new() -> Self {
                Sections(E::new())
            }

            #[inline(always)]
            fn find(&self, map: &$map, key: u64) -> u64 {
                let guard = self.0.enter();
                map.get(&key, &guard).copied().unwrap_or(0)
            }

            fn after(&mut self) {
                self.0.after();
            }
        }

        impl Read<$map> for Protected {
            fn new() -> Self {
                Protected
            }

            #[inline(always)]
            fn find(&self, map: &$map, key: u64) -> u64 {
                black_box(map.protect(&key)).map_or(0, |held| *held)
            }
        }
    )* };
}
ours! {
    Own: Map::builder().hasher(Mixing).build();
    Ordered: OrderedMap::new();
}

/// References in sections.
pub struct Sections<E>(pub E);
/// Copies by restartable lookups.
pub struct Copied;
/// Protected references.
pub struct Protected;

impl Read<Own> for Copied {
    fn new() -> Copied {
        Copied
    }

    #[inline(always)]
    fn find(&self, map: &Own, key: u64) -> u64 {
        map.copied(&key).unwrap_or(0)
    }
}

/// A plain section and a copy of what is found in it.
pub struct Usual;

impl Shared for Papaya<u64, u64, Mixing> {
    fn new() -> Self {
        Papaya::with_hasher(Mixing)
    }

    fn insert(&self, key: u64) -> bool {
        self.pin().insert(key, value_of(key)).is_none()
    }

    fn remove(&self, key: u64) -> bool {
        self.pin().remove(&key).is_some()
    }
}

impl Read<Papaya<u64, u64, Mixing>> for Usual {
    fn new() -> Usual {
        Usual
    }

    #[inline(always)]
    fn find(&self, map: &Papaya<u64, u64, Mixing>, key: u64) -> u64 {
        map.pin().get(&key).copied().unwrap_or(0)
    }
}

impl Shared for scc::HashMap<u64, u64, Mixing> {
    fn new() -> Self {
        scc::HashMap::with_hasher(Mixing)
    }

    fn insert(&self, key: u64) -> bool {
        self.upsert_sync(key, value_of(key)).is_none()
    }

    fn remove(&self, key: u64) -> bool {
        self.remove_sync(&key).is_some()
    }
}

impl Read<scc::HashMap<u64, u64, Mixing>> for Usual {
    fn new() -> Usual {
        Usual
    }

    #[inline(always)]
    fn find(&self, map: &scc::HashMap<u64, u64, Mixing>, key: u64) -> u64 {
        map.read_sync(&key, |_, value| *value).unwrap_or(0)
    }
}

impl Shared for DashMap<u64, u64, Mixing> {
    fn new() -> Self {
        DashMap::with_hasher(Mixing)
    }

    fn insert(&self, key: u64) -> bool {
        DashMap::insert(self, key, value_of(key)).is_none()
    }

    fn remove(&self, key: u64) -> bool {
        DashMap::remove(self, &key).is_some()
    }
}

impl Read<DashMap<u64, u64, Mixing>> for Usual {
    fn new() -> Usual {
        Usual
    }

    #[inline(always)]
    fn find(&self, map: &DashMap<u64, u64, Mixing>, key: u64) -> u64 {
        map.get(&key).map_or(0, |value| *value)
    }
}

impl Shared for SkipMap<u64, u64> {
    fn new() -> Self {
        SkipMap::new()
    }

    fn insert(&self, key: u64) -> bool {
        // It does not tell; there is one writer.
        let before = self.len();
        SkipMap::insert(self, key, value_of(key));
        self.len() > before
    }

    fn remove(&self, key: u64) -> bool {
        SkipMap::remove(self, &key).is_some()
    }
}

impl Read<SkipMap<u64, u64>> for Usual {
    fn new() -> Usual {
        Usual
    }

    #[inline(always)]
    fn find(&self, map: &SkipMap<u64, u64>, key: u64) -> u64 {
        loop {
            // An insertion takes the key's old entry out first.
            match map.get(&key) {
                Some(entry) => return *entry.value(),
                None => std::thread::yield_now(),
            }
        }
    }
}

/// liburcu's, on one of its flavors.
#[cfg(urcu)]
pub struct Lfht(&'static Functions, OnceLock<Ht>);

#[cfg(urcu)]
impl Lfht {
    pub fn new(functions: &'static Functions) -> Lfht {
        Lfht(functions, OnceLock::new())
    }

    /// The calling thread is registered.
    fn table(&self, table: &Table) -> *mut c_void {
        let made = self.1.get_or_init(|| {
            // SAFETY: no preconditions; freed by `drop`.
            let ht = unsafe { (self.0.lfht_new)() };
            assert!(!ht.is_null(), "liburcu has no memory for a table");
            for key in 0..table.keys() {
                // SAFETY: registered.
                assert_eq!(unsafe { (self.0.lfht_insert)(ht, key) }, 1, "a new table is empty");
            }
            Ht(ht)
        });
        made.0
    }
}

#[cfg(urcu)]
struct Ht(*mut c_void);
#[cfg(urcu)]
// SAFETY: made for many threads.
unsafe impl Sync for Ht {}
#[cfg(urcu)]
// SAFETY: as above.
unsafe impl Send for Ht {}

#[cfg(urcu)]
impl Drop for Lfht {
    fn drop(&mut self) {
        if let Some(Ht(ht)) = self.1.take() {
            let thread = Thread::register(self.0, true);
            // SAFETY: nobody else uses it any more; this thread is registered.
            let freed = unsafe { (thread.0.lfht_free)(ht) };
            assert_ne!(freed, 0, "a table without items can be destroyed");
        }
    }
}

#[cfg(urcu)]
impl Peer for Lfht {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        // Filled by a thread that is registered as a writer.
        let writer = Thread::register(self.0, true);
        let ht = self.table(table);
        drop(writer);
        Box::new(LfhtReader(Thread::register(self.0, false), ht, table.keys() - 1))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        let thread = Thread::register(self.0, true);
        Box::new(LfhtWriter(self.table(table), thread))
    }
}

#[cfg(urcu)]
struct LfhtReader(Thread, *mut c_void, u64);

#[cfg(urcu)]
impl Reader for LfhtReader {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: registered; the table lives as long as its peer.
        unsafe { (self.0.0.lfht_lookups)(self.1, seed, self.2, n) }
    }
}

#[cfg(urcu)]
struct LfhtWriter(*mut c_void, Thread);

#[cfg(urcu)]
impl Writer for LfhtWriter {
    fn replace(&mut self, key: u64) {
        self.insert(key);
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        self.drain();
        Ok(Duration::ZERO)
    }

    fn insert(&mut self, key: u64) -> bool {
        // SAFETY: registered.
        unsafe { (self.1.0.lfht_insert)(self.0, key) == 1 }
    }

    fn remove(&mut self, key: u64) -> bool {
        // SAFETY: registered.
        unsafe { (self.1.0.lfht_remove)(self.0, key) == 1 }
    }

    fn drain(&mut self) {
        // SAFETY: outside any section.
        unsafe { (self.1.0.barrier)() };
    }
}
