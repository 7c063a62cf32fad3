// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdTable`], the type that programs use.

use super::entry::{Entry, Live};
use super::id::Id;
use super::table::Table;
use crate::read::guard::ReadSide;
use crate::read::protected::Protected;
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::read::restart::traversal::Part;
use crate::structures::array::Array;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::node;
use crate::structures::scan::Scan;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The writers' knowledge of free indices, under their lock.
struct Free {
    /// Last generation of each index.
    generations: Vec<u32>,
    /// Indices that are free.
    indices: Vec<u32>,
}

/// Objects found by [`Id`] without a lock, each with a lock of its own.
///
/// ```
/// use reprieve::structures::IdTable;
///
/// let queues = IdTable::new();
/// let id = queues.insert(vec!["hello"]).unwrap();
///
/// // In a plain section: find, lock, use.
/// let guard = reprieve::read_lock();
/// queues.get(id, &guard).unwrap().lock().unwrap().push("world");
/// drop(guard);
///
/// // Protected: the entry may be held, and its lock waited for, for any time.
/// let entry = queues.protect(id).unwrap();
/// assert_eq!(entry.lock().unwrap().len(), 2);
///
/// // Removed: stale references and stale ids find out.
/// assert!(queues.remove(id));
/// assert!(entry.is_deleted() && entry.lock().is_none());
/// assert!(!queues.contains(id) && queues.protect(id).is_none());
/// ```
///
/// ```compile_fail,E0505
/// let table = reprieve::structures::IdTable::new();
/// let id = table.insert(1).unwrap();
/// let guard = reprieve::read_lock();
/// let entry = table.get(id, &guard);
/// drop(guard);
/// println!("{}", entry.is_some());
/// ```
/// ```compile_fail,E0505
/// let table = reprieve::structures::IdTable::new();
/// let id = table.insert(1).unwrap();
/// let entry = table.protect(id).unwrap();
/// drop(table);
/// entry.lock();
/// ```
///
/// An object need not be `Sync`, since its lock comes first; but then what the lock gives out
/// is not, either:
///
/// ```compile_fail,E0277
/// fn share<T: Sync>(_: &T) {}
/// let table = reprieve::structures::IdTable::new();
/// let id = table.insert(std::cell::Cell::new(1)).unwrap();
/// share(&table);
/// let entry = table.protect(id).unwrap();
/// share(&entry.lock().unwrap());
/// ```
///
/// The thread that took an object's lock releases it:
///
/// ```compile_fail,E0277
/// let table = reprieve::structures::IdTable::new();
/// let id = table.insert(1).unwrap();
/// let entry = table.protect(id).unwrap();
/// let live = entry.lock().unwrap();
/// std::thread::scope(|scope| scope.spawn(|| drop(live)).join().unwrap());
/// ```
pub struct IdTable<T, D = Global> {
    table: Table<Entry<T>>,
    writer: Mutex<Free>,
    len: AtomicUsize,
    domain: D,
    entries: PhantomData<Entry<T>>,
}

/// Size of a new table.
const FIRST: usize = 16;

impl<T: Send + 'static> IdTable<T> {
    /// An empty table of the default domain.
    pub fn new() -> IdTable<T> {
        IdTable::new_in(Global)
    }
}

impl<T: Send + 'static> Default for IdTable<T> {
    fn default() -> IdTable<T> {
        IdTable::new()
    }
}

impl<T: Send + 'static, D: Handle> IdTable<T, D> {
    /// An empty table of that domain.
    pub fn new_in(domain: D) -> IdTable<T, D> {
        let free = Free { generations: vec![0; FIRST], indices: (0..FIRST as u32).rev().collect() };
        IdTable {
            table: Table::new(FIRST),
            writer: Mutex::new(free),
            len: AtomicUsize::new(0),
            domain,
            entries: PhantomData,
        }
    }

    /// Nothing that can panic but for want of memory runs under the lock, and nothing is half
    /// done then.
    fn writer(&self) -> std::sync::MutexGuard<'_, Free> {
        self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds an object and returns its id: of a free index if there is one, else the table
    /// grows.
    ///
    /// # Errors
    /// The object, if all ids of all 2^31 indices are in use or used up.
    pub fn insert(&self, value: T) -> Result<Id, T> {
        let mut writer = self.writer();
        let mut old = None;
        if writer.indices.is_empty() {
            let size = writer.generations.len();
            // Ids have 32 bits of index.
            let Ok(more) = u32::try_from(size * 2) else {
                return Err(value);
            };
            writer.generations.resize(more as usize, 0);
            writer.indices.extend((size as u32..more).rev());
            // SAFETY: under the lock.
            old = Some(unsafe { self.table.grow(more as usize) });
        }
        let next = writer.indices.pop().and_then(|index| {
            let generation = &mut writer.generations[index as usize];
            *generation += 1;
            Id::new(index, *generation)
        });
        let Some(id) = next else {
            return Err(value);
        };
        let entry = node::allocate(Entry::new(id, value));
        // SAFETY: under the lock; the index is below the size.
        unsafe { self.table.set(id.index() as usize, entry) };
        self.len.fetch_add(1, Ordering::Relaxed);
        drop(writer);
        if let Some(old) = old {
            // SAFETY: just replaced, by us alone.
            unsafe { Array::retire(self.domain.domain(), old) };
        }
        Ok(id)
    }

    /// The object of that id, for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[inline]
    #[track_caller]
    pub fn get<'g, G: ReadSide>(&'g self, id: Id, guard: &'g G) -> Option<&'g Entry<T>> {
        handle::check(&self.domain, guard);
        // SAFETY: in a section of the domain, in which the entry stays alive.
        unsafe { self.table.get(id.index() as usize).as_ref() }.filter(|entry| entry.id == id)
    }

    /// The object of that id, protected: for any time, and no grace period waits for it.
    #[inline]
    pub fn protect(&self, id: Id) -> Option<Protected<'_, Entry<T>>> {
        // SAFETY: entries and arrays are retired through this domain, entries with the address
        // that the lookup returns.
        unsafe { self.domain.protect(&self.find(id)) }
    }

    /// Whether the id names an object, by a restartable lookup.
    #[inline]
    pub fn contains(&self, id: Id) -> bool {
        // SAFETY: as above.
        !unsafe { self.domain.lookup(&self.find(id)) }.is_null()
    }

    fn find(&self, id: Id) -> Find<'_, T> {
        Find { size: &self.table.size, array: &self.table.array, id: id.get() }
    }

    /// Removes the object of that id, when its lock is free; tells whether it was there. It is
    /// dropped when nobody can refer to it any more.
    ///
    /// Waits for ever if the calling thread holds the object's lock: see
    /// [`remove_locked`](IdTable::remove_locked).
    pub fn remove(&self, id: Id) -> bool {
        let Some(entry) = self.protect(id) else {
            return false;
        };
        entry.lock().is_some_and(|live| self.remove_locked(live))
    }

    /// Removes an object whose lock is held. False, and nothing is done, if it is another
    /// table's.
    pub fn remove_locked(&self, live: Live<'_, T>) -> bool {
        let (index, entry) = (live.0.id.index() as usize, std::ptr::from_ref(live.0));
        let mut writer = self.writer();
        // SAFETY: under the lock.
        let found = unsafe { self.table.get(index) };
        if !std::ptr::eq(found, entry) {
            return false;
        }
        live.set_deleted();
        // SAFETY: as above.
        unsafe { self.table.set(index, std::ptr::null_mut()) };
        if writer.generations[index] < u32::MAX {
            writer.indices.push(index as u32);
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        drop(writer);
        drop(live);
        // SAFETY: just unlinked, by us alone.
        unsafe { node::retire(self.domain.domain(), found) };
        true
    }

    /// All objects, each protected, in the order of their indices. No grace period waits for the
    /// scan.
    pub fn iter(&self) -> Iter<'_, T, D> {
        Iter { table: self, scan: Scan::new() }
    }

    /// The same for as long as the guard lives. A grace period waits for the guard.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn iter_in<'g, G: ReadSide>(&'g self, guard: &'g G) -> impl Iterator<Item = &'g Entry<T>> {
        handle::check(&self.domain, guard);
        // SAFETY: as in `get`.
        (0..self.table.size()).filter_map(|index| unsafe { self.table.get(index).as_ref() })
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For how many objects there is room without growth.
    pub fn size(&self) -> usize {
        self.table.size()
    }
}

impl<T, D> Drop for IdTable<T, D> {
    fn drop(&mut self) {
        // SAFETY: whatever refers to the table or its entries borrows it.
        unsafe {
            let array = self.table.array.load(Ordering::Acquire);
            for slot in Array::slots(array) {
                let entry = slot.load(Ordering::Relaxed);
                if !entry.is_null() {
                    node::free(entry);
                }
            }
            Array::free(array);
        }
    }
}

struct Find<'a, T> {
    size: &'a AtomicUsize,
    array: &'a AtomicPtr<Array<Entry<T>>>,
    id: u64,
}

// SAFETY: loads through the section, in the order of `Table::get`, in line.
unsafe impl<T> Lookup for Find<'_, T> {
    type Output = *const Entry<T>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Entry<T> {
        // SAFETY: the array found after the size has the index; what it leads to is alive in
        // the section. An id is one word.
        unsafe {
            let index = self.id as u32 as usize;
            if index >= section.read(self.size as *const AtomicUsize as *const usize) {
                return std::ptr::null();
            }
            let array = section.load(self.array) as usize;
            let slot = array + Array::<Entry<T>>::SLOTS + index * size_of::<usize>();
            let entry = section.read(slot as *const usize);
            if entry == 0
                || section.read((entry + offset_of!(Entry<T>, id)) as *const u64) != self.id
            {
                return std::ptr::null();
            }
            entry as *const Entry<T>
        }
    }
}

/// See [`IdTable::iter`].
pub struct Iter<'t, T, D> {
    table: &'t IdTable<T, D>,
    scan: Scan,
}

impl<'t, T: Send + 'static, D: Handle> Iterator for Iter<'t, T, D> {
    type Item = Protected<'t, Entry<T>>;

    fn next(&mut self) -> Option<Protected<'t, Entry<T>>> {
        let Table { size, array } = &self.table.table;
        let part = |index, steps| Next { size, array, index: index as usize, steps };
        // SAFETY: entries and arrays are retired through this domain, entries with the address that
        // a part returns.
        unsafe { self.scan.next(&self.table.domain, part) }
    }
}

/// Finds the first entry at `index` or behind, in `steps` places, and the index to go on from.
struct Next<'a, T> {
    size: &'a AtomicUsize,
    array: &'a AtomicPtr<Array<Entry<T>>>,
    index: usize,
    steps: usize,
}

// SAFETY: as for `Find`.
unsafe impl<T> Lookup for Next<'_, T> {
    type Output = Part<Entry<T>>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Part<Entry<T>> {
        let (mut entry, mut index, mut left) = (0, self.index, self.steps);
        // SAFETY: as in `Find`.
        unsafe {
            let size = section.read(self.size as *const AtomicUsize as *const usize);
            let slots = section.load(self.array) as usize + Array::<Entry<T>>::SLOTS;
            while index < size && entry == 0 && left != 0 {
                entry = section.read((slots + index * size_of::<usize>()) as *const usize);
                index += 1;
                left -= 1;
            }
            let word = if index < size || entry != 0 { index } else { 0 };
            Part { node: entry as *const Entry<T>, word }
        }
    }
}
