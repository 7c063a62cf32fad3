// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ordered map as programs use it: reads. `write` has the updates.

use super::links::{Item, Levels};
use super::range::{Iter, Range, RangeIn};
use super::search::{Hopped, Search, Slot, hop};
use crate::read::guard::ReadSide;
use crate::structures::handle::{self, Global, Handle};
use crate::structures::held::Held;
use foldhash::fast::RandomState;
use std::borrow::Borrow;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds, RangeFull};
use std::ptr::null;
use std::sync::atomic::AtomicU64;

/// A concurrent map in the order of its keys.
///
/// ```
/// use reprieve::structures::OrderedMap;
///
/// let map = OrderedMap::new();
/// map.insert(3, "c");
/// map.insert(1, "a");
/// map.insert(2, "b");
///
/// // Protected: held for any time, even after the key is gone.
/// let held = map.protect(&1).unwrap();
/// assert_eq!(*map.remove(&1).unwrap(), "a");
/// assert_eq!((*held.key(), *held), (1, "a"));
///
/// // A scan hands out one protected item after another, and no grace period waits for it.
/// assert_eq!(map.range(2..).map(|item| *item).collect::<String>(), "bc");
/// assert_eq!(*map.first().unwrap(), "b");
///
/// // In a plain section: references live as long as the guard.
/// let guard = reprieve::read_lock();
/// assert_eq!(map.get(&2, &guard), Some(&"b"));
/// assert!(map.range_in(..3, &guard).eq([(&2, &"b")]));
/// ```
///
/// A reference outlives neither its guard nor the map:
///
/// ```compile_fail,E0505
/// let map = reprieve::structures::OrderedMap::new();
/// map.insert(1, 10);
/// let guard = reprieve::read_lock();
/// let value = map.get(&1, &guard);
/// drop(guard);
/// println!("{value:?}");
/// ```
/// ```compile_fail,E0505
/// let map = reprieve::structures::OrderedMap::new();
/// map.insert(1, 10);
/// let held = map.protect(&1).unwrap();
/// drop(map);
/// println!("{}", *held);
/// ```
/// ```compile_fail,E0505
/// let map = reprieve::structures::OrderedMap::new();
/// map.insert(1, 10);
/// let mut items = map.iter();
/// drop(map);
/// items.next();
/// ```
///
/// Values are shared between threads and freed by others, later:
///
/// ```compile_fail,E0277
/// reprieve::structures::OrderedMap::new().insert(1, std::cell::Cell::new(1));
/// ```
pub struct OrderedMap<K, V, D = Global> {
    pub(super) levels: Levels<K, V>,
    /// Of the items' heights.
    pub(super) random: AtomicU64,
    pub(super) domain: D,
    items: PhantomData<(K, V)>,
}

impl<K, V> OrderedMap<K, V> {
    /// An empty map of the default domain.
    pub fn new() -> OrderedMap<K, V> {
        OrderedMap::new_in(Global)
    }
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> OrderedMap<K, V> {
        OrderedMap::new()
    }
}

impl<K, V, D> OrderedMap<K, V, D> {
    /// An empty map of that domain.
    pub fn new_in(domain: D) -> OrderedMap<K, V, D> {
        let random = AtomicU64::new(RandomState::default().hash_one(0));
        OrderedMap { levels: Levels::new(), random, domain, items: PhantomData }
    }

    /// How many keys there are; while others write, how many there were at about this time.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, V, D> OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
    /// The value of `key`, for as long as the guard lives.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn get<'g, Q, G>(&'g self, key: &Q, guard: &'g G) -> Option<&'g V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
        G: ReadSide,
    {
        handle::check(&self.domain, guard);
        // SAFETY: the guard's section is one of this domain and lasts for 'g.
        let pair = unsafe { Item::pair(self.levels.find(|k| k.borrow() < key).after)? };
        (pair.key.borrow() == key).then_some(&pair.value)
    }

    /// The item of `key`, protected: for any time. No grace period waits for it, nor for the
    /// search.
    pub fn protect<Q>(&self, key: &Q) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.search(|k: &Q| k < key).after().filter(|held| held.key().borrow() == key)
    }

    /// Whether there is such a key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.protect(key).is_some()
    }

    /// The item of the smallest key, protected.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = [(2, "b"), (1, "a")].into_iter().collect();
    /// assert_eq!((*map.first().unwrap(), *map.last().unwrap()), ("a", "b"));
    /// map.clear();
    /// assert!(map.first().is_none() && map.last().is_none());
    /// ```
    pub fn first(&self) -> Option<Held<'_, K, V>> {
        let slot = Slot::reserve(&self.domain);
        // SAFETY: items are retired through this domain; the head's links have no marks.
        match unsafe { hop(&self.domain, self.levels.link(null(), 0), &slot, None) } {
            // SAFETY: the hop has filled the slot.
            Hopped::Item(item) => Some(unsafe { slot.hold(item) }),
            _ => None,
        }
    }

    /// The item of the largest key, protected.
    pub fn last(&self) -> Option<Held<'_, K, V>> {
        self.search(|_: &K| true).before()
    }

    /// The item of the smallest key within the bound, protected.
    ///
    /// ```
    /// use std::ops::Bound::*;
    /// let map: reprieve::structures::OrderedMap<_, _> = (1..4).map(|n| (n * 10, n)).collect();
    /// let smallest = |bound| map.lower_bound(bound).map(|item| *item);
    /// assert_eq!(smallest(Included(&20)), Some(2));
    /// assert_eq!(smallest(Excluded(&20)), Some(3));
    /// assert_eq!(smallest(Excluded(&30)), None);
    /// ```
    pub fn lower_bound<Q>(&self, bound: Bound<&Q>) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.search(|key: &Q| super::range::before(&(bound, Bound::Unbounded::<&Q>), key)).after()
    }

    /// The item of the largest key within the bound, protected.
    ///
    /// ```
    /// use std::ops::Bound::*;
    /// let map: reprieve::structures::OrderedMap<_, _> = (1..4).map(|n| (n * 10, n)).collect();
    /// let largest = |bound| map.upper_bound(bound).map(|item| *item);
    /// assert_eq!(largest(Included(&20)), Some(2));
    /// assert_eq!(largest(Excluded(&20)), Some(1));
    /// assert_eq!(largest(Excluded(&10)), None);
    /// ```
    pub fn upper_bound<Q>(&self, bound: Bound<&Q>) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.search(|key: &Q| !super::range::after(&(Bound::Unbounded::<&Q>, bound), key)).before()
    }

    /// The keys of a range and their values, in order, each protected. See the module's text for
    /// what is seen. No grace period waits for the scan: it keeps two items alive, and those that
    /// the caller keeps.
    ///
    /// ```
    /// use std::ops::Bound::*;
    /// let names = ["Ann", "Bob", "Bea", "Cleo"].map(|name| (name.to_string(), name.len()));
    /// let map: reprieve::structures::OrderedMap<String, _> = names.into_iter().collect();
    /// let range = map.range::<str, _>((Included("B"), Excluded("C")));
    /// assert_eq!(range.map(|item| item.key().clone()).collect::<Vec<_>>(), ["Bea", "Bob"]);
    /// ```
    pub fn range<Q, R>(&self, range: R) -> Range<'_, Q, R, K, V, D>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
        R: RangeBounds<Q>,
    {
        Range::new(&self.levels, &self.domain, range)
    }

    /// All keys and values: [`range(..)`](OrderedMap::range).
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = [(2, "b"), (1, "a")].into_iter().collect();
    /// assert_eq!(map.iter().map(|item| *item).collect::<String>(), "ab");
    /// ```
    pub fn iter(&self) -> Iter<'_, K, V, D> {
        self.range(..)
    }

    /// The same as references, for as long as the guard lives: faster, but a grace period waits for
    /// the guard, and the map's frees with it.
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn range_in<'g, Q, R, G>(&'g self, range: R, guard: &'g G) -> RangeIn<'g, Q, R, K, V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
        R: RangeBounds<Q>,
        G: ReadSide,
    {
        handle::check(&self.domain, guard);
        RangeIn::new(&self.levels, range)
    }

    /// [`range_in(.., guard)`](OrderedMap::range_in).
    ///
    /// # Panics
    /// If the guard belongs to another domain.
    #[track_caller]
    pub fn iter_in<'g, G: ReadSide>(&'g self, guard: &'g G) -> RangeIn<'g, K, RangeFull, K, V> {
        self.range_in(.., guard)
    }

    fn search<Q: ?Sized>(&self, below: impl Fn(&Q) -> bool) -> Search<K, V>
    where
        K: Borrow<Q>,
    {
        // SAFETY: items are retired through this domain.
        unsafe { Search::run(&self.levels, &self.domain, |key| below(key.borrow()), None) }
    }
}
