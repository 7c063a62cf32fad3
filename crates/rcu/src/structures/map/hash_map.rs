// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map as programs use it: reads in each of the three ways. `write` has the updates.

use super::builder::Builder;
use super::iter::{Iter, IterIn};
use super::lookup::{Copied, Find};
use super::table::{Item, Table};
use crate::domain::Cookie;
use crate::read::guard::ReadSide;
use crate::structures::copy::fits;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::held::Held;
use crate::structures::node::Pair;
use foldhash::fast::RandomState;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::sync::Mutex;

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
/// assert!(map.remove(&1).is_some());
/// assert_eq!((*held.key(), *held), (1, 10));
///
/// // A scan hands out one protected item after another, and no grace period waits for it.
/// assert_eq!(map.iter().map(|item| *item).sum::<i32>(), 20);
///
/// // Read, copy, update.
/// map.update(&2, |value| value + 1);
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
    pub(super) table: Table<K, V>,
    pub(super) load: usize,
    /// The chains that it began with: it does not shrink below.
    pub(super) least: usize,
    /// The grace period after which the table may change its size once more. Held by whoever
    /// changes it.
    pub(super) growth: Mutex<Option<Cookie>>,
    pub(super) hasher: S,
    pub(super) domain: D,
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
    pub(super) fn with(chains: usize, load: usize, hasher: S, domain: D) -> Map<K, V, D, S> {
        let (least, growth) = (Table::<K, V>::size(chains), Mutex::new(None));
        Map { table: Table::new(least), load, least, growth, hasher, domain, items: PhantomData }
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

impl<K, V, D: Handle, S> Map<K, V, D, S> {
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
        if pairs.found.is_null() {
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
        self.protect_at(key, self.hasher.hash_one(key))
    }

    #[inline]
    pub(super) fn protect_at<Q>(&self, key: &Q, hash: u64) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // SAFETY: items and chains are retired through this domain, items with the address that
        // the lookup returns.
        let held = unsafe { self.domain.protect(&Find { chains: &self.table.chains, hash }) }?;
        let held = Item::hold(held);
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
            Some(Item::hold(handle::protect_found(&self.domain, item.as_ptr())))
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
}
