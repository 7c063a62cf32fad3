// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects found by number and then locked ([IPC], sections 4 and 5): `IdTable`, and the array
//! under a reader-writer lock that it replaces.
//!
//! A lookup finds the object, locks it, looks at it, unlocks it. To replace one is to remove it and
//! to insert another, which gets a new id; readers take the current id of a key from an array of
//! atomics, and one that has gone stale meanwhile is not wrong.

use super::side::Enter;
use super::{Peer, Reader, Writer, drain, random_keys, wait};
use crate::error::Result;
use crate::table::{Table, value_of};
use reprieve::structures::IdTable;
use reprieve::structures::ids::Id;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// An object.
struct Object {
    key: u64,
    value: u64,
}

impl Object {
    fn new(key: u64) -> Object {
        Object { key, value: value_of(key) }
    }

    fn belongs_to(&self, key: u64) -> bool {
        self.key == key && self.value == value_of(key)
    }
}

/// `IdTable` and the ids of the keys.
struct Ids {
    table: IdTable<Object>,
    ids: Vec<AtomicU64>,
}

impl Ids {
    fn new(keys: u64) -> Ids {
        let table = IdTable::new();
        let ids = (0..keys).map(|key| AtomicU64::new(insert(&table, key))).collect();
        Ids { table, ids }
    }

    fn id(&self, key: u64) -> u64 {
        self.ids[key as usize].load(Ordering::Acquire)
    }

    /// Whether `found` is wrong for the key whose id was `number`.
    fn wrong(&self, key: u64, number: u64, found: Option<bool>) -> bool {
        match found {
            Some(right) => !right,
            // Removed between the two; its successor's id may not be there yet.
            None => self.id(key) == number && number != GONE,
        }
    }
}

/// No id, while an object is being replaced.
const GONE: u64 = 0;

fn insert(table: &IdTable<Object>, key: u64) -> u64 {
    table.insert(Object::new(key)).map_or(GONE, Id::get)
}

/// `IdTable`, found in sections.
pub struct Sections<E>(OnceLock<Ids>, PhantomData<fn() -> E>);
/// `IdTable`, by protected references.
#[derive(Default)]
pub struct Protected(OnceLock<Ids>);

impl<E> Default for Sections<E> {
    fn default() -> Self {
        Sections(OnceLock::new(), PhantomData)
    }
}

impl<E: Enter> Peer for Sections<E> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        let ids = self.0.get_or_init(|| Ids::new(table.keys()));
        Box::new(SectionReader(ids, table, E::new()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(IdsWriter(self.0.get_or_init(|| Ids::new(table.keys()))))
    }
}

impl Peer for Protected {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(ProtectedReader(self.0.get_or_init(|| Ids::new(table.keys())), table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(IdsWriter(self.0.get_or_init(|| Ids::new(table.keys()))))
    }
}

/// Looks random keys up; `right` finds the object of an id and tells whether it is the key's.
#[inline(always)]
fn find(
    ids: &Ids,
    table: &Table,
    seed: &mut u64,
    n: u64,
    right: impl Fn(Id, u64) -> Option<bool>,
) -> u64 {
    random_keys(table, seed, n, |key| {
        let number = ids.id(key);
        ids.wrong(key, number, Id::from_number(number).and_then(|id| right(id, key)))
    })
}

struct SectionReader<'a, E>(&'a Ids, &'a Table, E);

impl<E: Enter> Reader for SectionReader<'_, E> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        let bad = find(self.0, self.1, seed, n, |id, key| {
            let guard = self.2.enter();
            let live = self.0.table.get(id, &guard)?.lock()?;
            Some(live.belongs_to(key))
        });
        self.2.after();
        bad
    }
}

struct ProtectedReader<'a>(&'a Ids, &'a Table);

impl Reader for ProtectedReader<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        find(self.0, self.1, seed, n, |id, key| {
            let entry = self.0.table.protect(id)?;
            let live = entry.lock()?;
            Some(live.belongs_to(key))
        })
    }
}

struct IdsWriter<'a>(&'a Ids);

impl Writer for IdsWriter<'_> {
    fn replace(&mut self, key: u64) {
        let Ids { table, ids } = self.0;
        let slot = &ids[key as usize];
        if let Some(id) = Id::from_number(slot.swap(GONE, Ordering::AcqRel)) {
            table.remove(id);
        }
        slot.store(insert(table, key), Ordering::Release);
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        wait()
    }

    fn drain(&mut self) {
        drain();
    }
}

/// Pointers to objects, as a table of ids has them.
type Array = Vec<Box<Mutex<Object>>>;

/// Objects under a reader-writer lock, each with a lock of its own: the paper's "without RCU".
#[derive(Default)]
pub struct Locked(OnceLock<RwLock<Array>>);

impl Locked {
    fn array(&self, table: &Table) -> &RwLock<Array> {
        self.0.get_or_init(|| {
            let object = |key| Box::new(Mutex::new(Object::new(key)));
            RwLock::new((0..table.keys()).map(object).collect())
        })
    }
}

impl Peer for Locked {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Locking(self.array(table), table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Locking(self.array(table), table))
    }
}

struct Locking<'a>(&'a RwLock<Array>, &'a Table);

impl Reader for Locking<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        random_keys(self.1, seed, n, |key| {
            let array = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let object = array[key as usize].lock().unwrap_or_else(PoisonError::into_inner);
            !object.belongs_to(key)
        })
    }
}

impl Writer for Locking<'_> {
    fn replace(&mut self, key: u64) {
        let new = Box::new(Mutex::new(Object::new(key)));
        let mut array = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut array[key as usize], new);
        drop(array);
        drop(old);
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        Ok(Duration::ZERO)
    }

    fn drain(&mut self) {}
}
