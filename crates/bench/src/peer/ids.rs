// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects found by number and then locked ([IPC], sections 4 and 5): `IdTable`, and the array
//! under a reader-writer lock that it replaces.
//!
//! A lookup finds the object, locks it, looks at it, unlocks it. To replace one is to remove it and
//! to insert another, which gets a new id; readers take the current id of a key from an array of
//! atomics, and one that has gone stale meanwhile is not wrong.

use super::drain;
use super::map::{Protected, Read, Sections, Shared, Usual};
use super::side::Enter;
use crate::table::{KEYS, value_of};
use reprieve::structures::IdTable;
use reprieve::structures::ids::Id;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

/// An object.
struct Object {
    key: u64,
    value: u64,
}

impl Object {
    fn new(key: u64) -> Object {
        Object { key, value: value_of(key) }
    }

    /// The value, 0 if the object belongs to another key.
    fn value_for(&self, key: u64) -> u64 {
        if self.key == key { self.value } else { 0 }
    }
}

/// `IdTable`, and the ids of the keys.
pub struct Ids {
    table: IdTable<Object>,
    ids: Vec<AtomicU64>,
}

/// No id, while an object is being replaced.
const GONE: u64 = 0;

impl Shared for Ids {
    fn new() -> Ids {
        Ids { table: IdTable::new(), ids: (0..KEYS).map(|_| AtomicU64::new(GONE)).collect() }
    }

    fn insert(&self, key: u64) -> bool {
        let slot = &self.ids[key as usize];
        let old = Id::from_number(slot.swap(GONE, Ordering::AcqRel));
        let new = !old.is_some_and(|id| self.table.remove(id));
        let id = self.table.insert(Object::new(key)).map_or(GONE, Id::get);
        slot.store(id, Ordering::Release);
        new
    }

    fn remove(&self, _: u64) -> bool {
        false
    }

    fn drain(&self) {
        drain();
    }
}

impl Ids {
    fn id(&self, key: u64) -> u64 {
        self.ids[key as usize].load(Ordering::Acquire)
    }

    /// The value of a key, whose object `find` finds by its id.
    #[inline(always)]
    fn value(&self, key: u64, find: impl FnOnce(Id) -> Option<u64>) -> u64 {
        let number = self.id(key);
        match Id::from_number(number).and_then(find) {
            Some(value) => value,
            // Removed between the two; its successor's id may not be there yet.
            None if self.id(key) != number || number == GONE => value_of(key),
            None => 0,
        }
    }
}

impl<E: Enter> Read<Ids> for Sections<E> {
    fn new() -> Self {
        Sections(E::new())
    }

    #[inline(always)]
    fn find(&self, ids: &Ids, key: u64) -> u64 {
        ids.value(key, |id| {
            let guard = self.0.enter();
            let live = ids.table.get(id, &guard)?.lock()?;
            Some(live.value_for(key))
        })
    }

    fn after(&mut self) {
        self.0.after();
    }
}

impl Read<Ids> for Protected {
    fn new() -> Self {
        Protected
    }

    #[inline(always)]
    fn find(&self, ids: &Ids, key: u64) -> u64 {
        ids.value(key, |id| {
            let entry = ids.table.protect(id)?;
            let live = entry.lock()?;
            Some(live.value_for(key))
        })
    }
}

/// Pointers to objects, as a table of ids has them.
type Array = Vec<Box<Mutex<Object>>>;

/// Objects under a reader-writer lock, each with a lock of its own: the paper's "without RCU".
pub struct Locked(RwLock<Array>);

impl Shared for Locked {
    fn new() -> Locked {
        Locked(RwLock::new(vec![]))
    }

    fn insert(&self, key: u64) -> bool {
        let object = Box::new(Mutex::new(Object::new(key)));
        let mut array = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let new = key as usize == array.len();
        let old = if new {
            array.push(object);
            None
        } else {
            Some(std::mem::replace(&mut array[key as usize], object))
        };
        drop(array);
        drop(old);
        new
    }

    fn remove(&self, _: u64) -> bool {
        false
    }
}

impl Read<Locked> for Usual {
    fn new() -> Self {
        Usual
    }

    #[inline(always)]
    fn find(&self, locked: &Locked, key: u64) -> u64 {
        let array = locked.0.read().unwrap_or_else(PoisonError::into_inner);
        let object = array[key as usize].lock().unwrap_or_else(PoisonError::into_inner);
        object.value_for(key)
    }
}
