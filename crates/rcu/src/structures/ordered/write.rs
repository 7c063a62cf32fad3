// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of an ordered map, under its lock.
//!
//! > **Invariant.** No code of the program runs under the lock, except a key's `Ord`.
//!
//! A call that takes a function protects the key's item, asks the function, and then replaces or
//! removes *that item*, as the calls of the hash map do (`map/write.rs`). If the map no longer has
//! it, the call begins again.
//!
//! An old item is protected before it is retired, a new one before it is published. Either comes
//! before any look into the slots that could let the item be freed.

use super::links::{Item, LEVELS, Locked, Place};
use super::ordered_map::OrderedMap;
use crate::structures::handle::{self, Handle};
use crate::structures::held::Held;
use crate::thread::head::Head;
use std::borrow::Borrow;
use std::mem::{ManuallyDrop, needs_drop, offset_of};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// An item that is in no map: freed if the program's own code panics meanwhile.
struct New<K, V>(*mut Item<K, V>);

impl<K, V> New<K, V> {
    fn key(&self) -> &K {
        // SAFETY: ours.
        unsafe { &(*self.0).pair.key }
    }

    /// The item, which is the caller's to publish.
    fn into_item(self) -> *mut Item<K, V> {
        ManuallyDrop::new(self).0
    }

    fn into_pair(self) -> (K, V) {
        // SAFETY: ours.
        unsafe { Item::take(self.into_item()) }
    }
}

impl<K, V> Drop for New<K, V> {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { Item::free(self.0) };
    }
}

impl<K, V, D> OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
    /// Sets the value of `key`, and returns the item that was there, protected.
    ///
    /// ```
    /// let map = reprieve::structures::OrderedMap::new();
    /// assert!(map.insert("a", 1).is_none());
    /// assert_eq!(*map.insert("a", 2).unwrap(), 1);
    /// ```
    pub fn insert(&self, key: K, value: V) -> Option<Held<'_, K, V>> {
        let new = self.item(key, value);
        let locked = self.levels.lock();
        let place = locked.find(|k| k.cmp(new.key()));
        self.put(locked, &place, new.into_item())
    }

    /// Inserts `key` unless it is there.
    ///
    /// ```
    /// let map = reprieve::structures::OrderedMap::new();
    /// assert_eq!(map.insert_new("a", 1), Ok(()));
    /// assert_eq!(map.insert_new("a", 2), Err(("a", 2)));
    /// ```
    ///
    /// # Errors
    /// The arguments, if it is.
    pub fn insert_new(&self, key: K, value: V) -> Result<(), (K, V)> {
        self.publish(self.item(key, value)).map(drop).map_err(New::into_pair)
    }

    /// The item of `key`, protected; inserts what `value` returns if there is none. If another
    /// writer inserts one first, that is the result.
    ///
    /// ```
    /// let map = reprieve::structures::OrderedMap::new();
    /// assert_eq!(*map.get_or_insert_with("a", || 1), 1);
    /// assert_eq!(*map.get_or_insert_with("a", || unreachable!()), 1);
    /// ```
    pub fn get_or_insert_with(&self, key: K, value: impl FnOnce() -> V) -> Held<'_, K, V> {
        if let Some(held) = self.protect(&key) {
            return held;
        }
        let mut new = self.item(key, value());
        loop {
            match self.publish(new) {
                Ok(held) => return held,
                Err(back) => new = back,
            }
            if let Some(held) = self.protect(new.key()) {
                return held;
            }
        }
    }

    /// Read, copy, update: replaces the value of `key` by `f(&value)`; returns the item that was
    /// there, protected. If another writer comes first, `f` runs again.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = [("a", 1)].into_iter().collect();
    /// assert_eq!(*map.update("a", |value| value + 1).unwrap(), 1);
    /// assert_eq!(*map.protect("a").unwrap(), 2);
    /// assert!(map.update("b", |value| value + 1).is_none());
    /// ```
    pub fn update<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> V) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q> + Clone,
        Q: Ord + ?Sized,
    {
        loop {
            let old = self.protect(key)?;
            if self.replace(&old, f(&old)).is_ok() {
                return Some(old);
            }
        }
    }

    /// Replaces the value of the item that the caller holds, if it is still in the map.
    ///
    /// ```
    /// let map = reprieve::structures::OrderedMap::new();
    /// map.insert("a", 1);
    /// let first = map.protect("a").unwrap();
    /// assert_eq!(map.replace(&first, 2), Ok(()));
    /// assert_eq!(map.replace(&first, 3), Err(3));
    /// assert_eq!((*first, *map.protect("a").unwrap()), (1, 2));
    /// ```
    ///
    /// # Errors
    /// The value, if it is not.
    pub fn replace(&self, held: &Held<'_, K, V>, value: V) -> Result<(), V>
    where
        K: Clone,
    {
        let new = self.item(held.key().clone(), value);
        match self.find_item(held) {
            Some((locked, place)) => drop(self.put(locked, &place, new.into_item())),
            None => return Err(new.into_pair().1),
        }
        Ok(())
    }

    /// Takes `key` out, and returns its item, protected.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = [("a".to_string(), 1)].into_iter().collect();
    /// assert_eq!(*map.remove("a").unwrap(), 1);
    /// assert!(map.remove("a").is_none());
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let locked = self.levels.lock();
        let place = locked.find(|k| k.borrow().cmp(key));
        self.put(locked, &place, null_mut())
    }

    /// Takes `key` out if `f` says so of its value. If another writer comes first, `f` runs again.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = [("a", 1)].into_iter().collect();
    /// assert!(map.remove_if("a", |value| *value > 1).is_none());
    /// assert_eq!(*map.remove_if("a", |value| *value == 1).unwrap(), 1);
    /// ```
    pub fn remove_if<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> bool) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        loop {
            let held = self.protect(key)?;
            if !f(&held) {
                return None;
            }
            if self.remove_item(&held) {
                return Some(held);
            }
        }
    }

    /// Takes the smallest key out.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = (1..4).map(|n| (n, n * n)).collect();
    /// assert_eq!((*map.pop_first().unwrap(), *map.pop_last().unwrap()), (1, 9));
    /// assert_eq!(map.len(), 1);
    /// ```
    pub fn pop_first(&self) -> Option<Held<'_, K, V>> {
        self.pop(Self::first)
    }

    /// Takes the largest key out.
    pub fn pop_last(&self) -> Option<Held<'_, K, V>> {
        self.pop(Self::last)
    }

    /// Removes the items for which `keep` does not hold: a scan, as [`iter`](OrderedMap::iter), for
    /// which no grace period waits. An item that replaces one meanwhile may stay unseen.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = (0..9).map(|n| (n, n * n)).collect();
    /// map.retain(|key, value| *key > 1 && *value < 10);
    /// assert_eq!(map.len(), 2);
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
        for held in self.iter() {
            if !keep(held.key(), &held) {
                self.remove_item(&held);
            }
        }
    }

    /// Removes all keys, one by one. What is inserted meanwhile may stay.
    ///
    /// ```
    /// let map: reprieve::structures::OrderedMap<_, _> = (0..9).map(|n| (n, n)).collect();
    /// map.clear();
    /// assert!(map.is_empty());
    /// ```
    pub fn clear(&self) {
        self.retain(|_, _| false);
    }

    /// A new item: of height 1, 2, 3 and so on, each four times as rare as the one before.
    fn item(&self, key: K, value: V) -> New<K, V> {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let mut x = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let height = 1 + (x ^ (x >> 31)).trailing_zeros() as usize / 2;
        New(Item::allocate(height.min(LEVELS), key, value))
    }

    /// Inserts the item, and protects it, unless its key is there.
    fn publish(&self, new: New<K, V>) -> Result<Held<'_, K, V>, New<K, V>> {
        let locked = self.levels.lock();
        let place = locked.find(|k| k.cmp(new.key()));
        if !place.item.is_null() {
            drop(locked);
            return Err(new);
        }
        let item = new.into_item();
        // SAFETY: not published, hence not retired.
        let held = unsafe { Item::hold(handle::protect_own(&self.domain, item)) };
        self.put(locked, &place, item);
        Ok(held)
    }

    fn pop<'m>(
        &'m self,
        end: impl Fn(&'m Self) -> Option<Held<'m, K, V>>,
    ) -> Option<Held<'m, K, V>> {
        loop {
            let held = end(self)?;
            if self.remove_item(&held) {
                return Some(held);
            }
        }
    }

    /// The place of the item, if it is still in the map, under the lock.
    fn find_item(&self, held: &Held<'_, K, V>) -> Option<(Locked<'_, K, V>, Place<K, V>)> {
        let locked = self.levels.lock();
        let place = locked.find(|k| k.cmp(held.key()));
        // SAFETY: null, or in the map.
        let item = unsafe { place.item.as_ref() }?;
        std::ptr::eq(&item.pair, held.pair()).then_some((locked, place))
    }

    /// Takes the item out, if it is still there.
    fn remove_item(&self, held: &Held<'_, K, V>) -> bool {
        match self.find_item(held) {
            Some((locked, place)) => drop(self.put(locked, &place, null_mut())),
            None => return false,
        }
        true
    }

    /// Puts `new`, or nothing, in the place, gives the lock up, and retires the item that was
    /// there, protected.
    fn put(
        &self,
        locked: Locked<'_, K, V>,
        place: &Place<K, V>,
        new: *mut Item<K, V>,
    ) -> Option<Held<'_, K, V>> {
        // SAFETY: the place was found under this lock, for this key.
        let old = unsafe { locked.put(place, new) };
        drop(locked);
        if old.is_null() {
            return None;
        }
        // SAFETY: unlinked by us alone, and not retired yet.
        unsafe {
            let held = Item::hold(handle::protect_own(&self.domain, old));
            let (head, leaf) = (&raw mut (*old).head, !needs_drop::<(K, V)>());
            let (domain, size) = (self.domain.domain(), (*old).size());
            domain.retire(old.cast_const().cast(), head, free::<K, V>, size, leaf);
            Some(held)
        }
    }
}

unsafe extern "C" fn free<K, V>(head: *mut Head) {
    // SAFETY: the head of an item of this type, whose grace period is over.
    unsafe { Item::free(head.byte_sub(offset_of!(Item<K, V>, head)).cast::<Item<K, V>>()) };
}
