// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map as programs use it: reads in each of the three ways, writes under a stripe's lock,
//! growth.

use super::builder::Builder;
use super::held::Held;
use super::iter::{Iter, IterIn};
use super::lookup::{Copied, Find};
use super::table::{Item, Locked, Pair, STRIPES, Table};
use crate::domain::Cookie;
use crate::read::guard::ReadSide;
use crate::structures::array::Array;
use crate::structures::copy::fits;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::node::{self, Unpublished};
use foldhash::fast::RandomState;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Mutex;

/// A table with chains so many times too long is far too small.
const FAR: usize = 4;

/// A concurrent hash map.
///
/// ```
/// use reprieve::structures::Map;
///
/// let map = Map::new();
/// map.insert(1, 10);
/// map.insert(2, 20);
///
/// // In a plain section: references live as long as the guard.
/// let guard = reprieve::read_lock();
/// assert_eq!(map.get(&1, &guard), Some(&10));
/// drop(guard);
///
/// // A copy, by a restartable lookup.
/// assert_eq!(map.copied(&2), Some(20));
///
/// // Protected: held for any time, even after the key is gone.
/// let held = map.protect(&1).unwrap();
/// assert!(map.remove(&1));
/// assert_eq!((*held.key(), *held), (1, 10));
///
/// // A scan hands out one protected item after another, and no grace period waits for it.
/// assert_eq!(map.iter().map(|item| *item).sum::<i32>(), 20);
///
/// // Read, copy, update.
/// assert!(map.update(&2, |value| value + 1));
/// assert_eq!(map.copied(&2), Some(21));
/// ```
///
/// A reference outlives neither its guard nor the map:
///
/// ```compile_fail,E0505
/// let map = reprieve::structures::Map::new();
/// map.insert(1, 10);
/// let guard = reprieve::read_lock();
/// let value = map.get(&1, &guard);
/// drop(guard);
/// println!("{value:?}");
/// ```
/// ```compile_fail,E0505
/// let map = reprieve::structures::Map::new();
/// map.insert(1, 10);
/// let held = map.protect(&1).unwrap();
/// drop(map);
/// println!("{}", *held);
/// ```
/// ```compile_fail,E0505
/// let map = reprieve::structures::Map::new();
/// map.insert(1, 10);
/// let guard = reprieve::read_lock();
/// let mut iter = map.iter_in(&guard);
/// drop(guard);
/// iter.next();
/// ```
///
/// Values are shared between threads and freed by others, later:
///
/// ```compile_fail,E0277
/// reprieve::structures::Map::new().insert(1, std::cell::Cell::new(1));
/// ```
pub struct Map<K, V, D = Global, S = RandomState> {
    table: Table<K, V>,
    load: usize,
    /// The grace period after which the table may grow once more. Held by whoever makes it
    /// grow.
    growth: Mutex<Option<Cookie>>,
    hasher: S,
    domain: D,
    items: PhantomData<(K, V)>,
}

impl Map<(), ()> {
    /// Settings for a new map.
    ///
    /// ```
    /// use reprieve::{Domain, structures::Map};
    /// let domain = Domain::builder().build()?;
    /// let map = Map::builder().domain(&domain).chains(1024).build();
    /// map.insert("a", 1);
    /// assert_eq!(map.copied("a"), Some(1));
    /// # Ok::<(), reprieve::Error>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<K, V, D, S> Map<K, V, D, S> {
    pub(super) fn with(table: Table<K, V>, load: usize, hasher: S, domain: D) -> Map<K, V, D, S> {
        Map { table, load, growth: Mutex::new(None), hasher, domain, items: PhantomData }
    }
}

impl<K, V> Map<K, V> {
    /// An empty map of the default domain.
    pub fn new() -> Map<K, V> {
        Map::builder().build()
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map::new()
    }
}

impl<K, V, D, S> Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    /// The value of `key`, for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[inline]
    #[track_caller]
    pub fn get<'g, Q, G>(&'g self, key: &Q, guard: &'g G) -> Option<&'g V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        G: ReadSide,
    {
        handle::check(&self.domain, guard);
        // SAFETY: the guard's section is one of this domain and lasts for 'g.
        unsafe {
            let item = self.table.find(self.hasher.hash_one(key), |k| k.borrow() == key)?;
            Some(&item.as_ref().pair.value)
        }
    }

    /// A copy of the value of `key`, by a restartable lookup. (If key and value exceed 24
    /// bytes: from a protected item.)
    #[inline]
    pub fn copied<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q> + Copy,
        Q: Hash + Eq + ?Sized,
        V: Copy,
    {
        if !const { fits::<Pair<K, V>, 3>() } {
            return self.protect(key).map(|held| *held);
        }
        let hash = self.hasher.hash_one(key);
        let find = Copied(Find { chains: &self.table.chains, hash });
        // SAFETY: items and chains are retired through this domain; the size was looked at.
        let pairs = unsafe { self.domain.lookup(&find) };
        if pairs.found == 0 {
            return None;
        }
        // SAFETY: one was found, so its pair was copied.
        let pair: Pair<K, V> = unsafe { pairs.pair.value() };
        if pair.key.borrow() == key { Some(pair.value) } else { self.copied_plain(key) }
    }

    /// Two keys have the same hash.
    #[cold]
    fn copied_plain<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Copy,
    {
        self.get(key, &self.domain.read()).copied()
    }

    /// The item of `key`, protected: for any time, and no grace period waits for it.
    #[inline]
    pub fn protect<Q>(&self, key: &Q) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        // SAFETY: items and chains are retired through this domain, items with the address that
        // the lookup returns.
        let held = unsafe { self.domain.protect(&Find { chains: &self.table.chains, hash }) }?;
        let held = Held::new(held);
        if held.key().borrow() == key { Some(held) } else { self.protect_plain(key, hash) }
    }

    /// Two keys have the same hash.
    #[cold]
    fn protect_plain<Q>(&self, key: &Q, hash: u64) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let _section = self.domain.read();
        // SAFETY: in a section of the domain.
        unsafe {
            let item = self.table.find(hash, |k| k.borrow() == key)?;
            Some(Held::new(handle::protect_found(&self.domain, item.as_ptr())))
        }
    }

    /// Whether there is such a key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.get(key, &self.domain.read()).is_some()
    }

    /// Sets the value of `key`. Returns whether the key is new.
    pub fn insert(&self, key: K, value: V) -> bool {
        let hash = self.hasher.hash_one(&key);
        // SAFETY: fresh. Freed after the lock is given up, if comparing keys panics.
        let new = unsafe { Unpublished::new(Item::allocate(hash, key, value)) };
        let locked = self.table.lock(hash);
        match locked.find(hash, |item| item.hash == hash && item.pair.key == new.pair.key) {
            Some(place) => {
                let old = locked.replace(place, new.into_node());
                self.written(locked);
                self.retire(old);
                false
            }
            None => {
                locked.insert(new.into_node());
                self.written(locked);
                true
            }
        }
    }

    /// Inserts `key` unless it is there.
    ///
    /// # Errors
    /// The arguments, if it is.
    pub fn insert_new(&self, key: K, value: V) -> Result<(), (K, V)> {
        let hash = self.hasher.hash_one(&key);
        let locked = self.table.lock(hash);
        if locked.find(hash, |item| item.hash == hash && item.pair.key == key).is_some() {
            return Err((key, value));
        }
        locked.insert(Item::allocate(hash, key, value));
        self.written(locked);
        Ok(())
    }

    /// Read, copy, update: replaces the value of `key` by `f(&value)`; returns whether the key
    /// is there. If another writer came first, the result is dropped and `f` runs again. `f` runs
    /// in a plain section, so it must not wait for a grace period, and without a lock; the result
    /// is dropped outside.
    pub fn update<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> V) -> bool
    where
        K: Borrow<Q> + Clone,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        loop {
            let section = self.domain.read();
            // SAFETY: the section keeps the item alive; the new one is ours until it is
            // published.
            unsafe {
                let Some(old) = self.table.find(hash, |k| k.borrow() == key) else {
                    return false;
                };
                let pair = &old.as_ref().pair;
                let new = Item::allocate(hash, pair.key.clone(), f(&pair.value));
                let locked = self.table.lock(hash);
                if let Some(place) = locked.find(hash, |item| std::ptr::eq(item, old.as_ptr())) {
                    let old = locked.replace(place, new);
                    self.written(locked);
                    // Outside the section, so that this thread may help if too much waits.
                    drop(section);
                    self.retire(old);
                    return true;
                }
                drop(locked);
                // A destructor may wait for a grace period.
                drop(section);
                node::free(new);
            }
        }
    }

    /// Takes `key` out; returns whether it was there. Key and value are dropped when nobody
    /// reads them any more.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let removed = self.unlink(key);
        if let Some(item) = removed {
            self.retire(item);
        }
        removed.is_some()
    }

    /// Takes `key` out and returns its value for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn take<'g, Q, G>(&'g self, key: &Q, guard: &'g G) -> Option<&'g V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        G: ReadSide,
    {
        handle::check(&self.domain, guard);
        let item = self.unlink(key)?;
        self.retire(item);
        // SAFETY: the section began before the item was retired.
        Some(unsafe { &(*item).pair.value })
    }

    fn unlink<Q>(&self, key: &Q) -> Option<*mut Item<K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let locked = self.table.lock(hash);
        let place = locked.find(hash, |item| item.hash == hash && item.pair.key.borrow() == key)?;
        Some(locked.remove(place))
    }

    /// All keys and values, each protected, in no order. See the module's text for what is seen. No
    /// grace period waits for the scan, and only the items that the caller keeps are kept.
    pub fn iter(&self) -> Iter<'_, K, V, D> {
        Iter::new(&self.table, &self.domain)
    }

    /// The same as references, for as long as the guard lives: faster, but a grace period waits for
    /// the guard, and the map's frees with it.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn iter_in<'g, G: ReadSide>(&'g self, guard: &'g G) -> IterIn<'g, K, V> {
        handle::check(&self.domain, guard);
        IterIn::new(&self.table)
    }

    /// How many keys there are; while others write, how many there were at about this time.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many chains the table has.
    pub fn chains(&self) -> usize {
        let _section = self.domain.read();
        // SAFETY: alive in the section.
        unsafe { (*self.table.chains()).len }
    }

    fn retire(&self, item: *mut Item<K, V>) {
        // SAFETY: just unlinked, by us alone.
        unsafe { node::retire(self.domain.domain(), item) };
    }

    /// Grows the table if it is time. After replacements, too: keys that came faster than grace
    /// periods have left it too small.
    fn written(&self, locked: Locked<'_, K, V>) {
        let (items, chains) = (locked.items().saturating_mul(STRIPES), locked.chains());
        drop(locked);
        if items > chains.saturating_mul(self.load) {
            self.grow(items, chains);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&self, items: usize, chains: usize) {
        // Somebody else grows it, or somebody's panic (for want of memory) has left it in an
        // unknown state: go on with long chains.
        let Ok(mut last) = self.growth.try_lock() else {
            return;
        };
        let domain = self.domain.domain();
        let far_too_small = items / FAR > chains.saturating_mul(self.load);
        let over = |cookie| domain.poll(cookie) || far_too_small && domain.try_grace_period();
        if last.is_some_and(|cookie| !over(cookie)) || self.chains() != chains {
            return;
        }
        let len = (items / self.load).next_power_of_two().max(chains * 2);
        // SAFETY: under `growth`, and the last growth's grace period is over. The chains are
        // not reachable any more.
        unsafe {
            let old = self.table.relink(len);
            *last = Some(domain.start_poll());
            drop(last);
            Array::retire(domain, old);
        }
    }
}

impl<K, V, D, S> std::fmt::Debug for Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static + std::fmt::Debug,
    V: Send + Sync + 'static + std::fmt::Debug,
    D: Handle,
    S: BuildHasher,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut map = f.debug_map();
        self.iter().for_each(|item| _ = map.entry(item.key(), &*item));
        map.finish()
    }
}
