// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of a map, each under the lock of the key's stripe.
//!
//! > **Invariant.** No code of the program runs under a lock, except a key's `==`.
//!
//! A call that takes a function protects the key's item, asks the function, and then replaces or
//! removes *that item*. If the map no longer has it, the call begins again. An item that is
//! protected is not freed, and no other has its address: equal addresses are the same item. So
//! functions may use the map, block, and wait for grace periods.
//!
//! An old item is protected before it is retired, a new one before it is published. Either comes
//! before any look into the slots that could let the item be freed.

use super::hash_map::Map;
use super::table::{Item, Locked, Position};
use crate::structures::handle::{self, Handle};
use crate::structures::held::Held;
use crate::structures::node::{self, Unpublished};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

/// What [`Map::compute`] does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<V> {
    /// Nothing.
    Keep,
    /// Sets the value.
    Set(V),
    /// Removes the key.
    Remove,
}

/// An item that is in no map.
type New<K, V> = Unpublished<Item<K, V>>;

fn item<K, V>(hash: u64, key: K, value: V) -> New<K, V> {
    // SAFETY: fresh.
    unsafe { Unpublished::new(Item::allocate(hash, key, value)) }
}

impl<K, V, D, S> Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    /// Sets the value of `key`, and returns the item that was there, protected.
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// assert!(map.insert("a", 1).is_none());
    /// assert_eq!(*map.insert("a", 2).unwrap(), 1);
    /// ```
    pub fn insert(&self, key: K, value: V) -> Option<Held<'_, K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = item(hash, key, value);
        let locked = self.table.lock(hash);
        match locked.find(hash, |item| item.pair.key == new.pair.key) {
            Some(place) => Some(self.replace_at(locked, place, new)),
            None => {
                locked.insert(new.into_node());
                self.written(locked);
                None
            }
        }
    }

    /// Inserts `key` unless it is there.
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// assert_eq!(map.insert_new("a", 1), Ok(()));
    /// assert_eq!(map.insert_new("a", 2), Err(("a", 2)));
    /// ```
    ///
    /// # Errors
    /// The arguments, if it is.
    pub fn insert_new(&self, key: K, value: V) -> Result<(), (K, V)> {
        let hash = self.hasher.hash_one(&key);
        let locked = self.table.lock(hash);
        if locked.find(hash, |item| item.pair.key == key).is_some() {
            return Err((key, value));
        }
        locked.insert(Item::allocate(hash, key, value));
        self.written(locked);
        Ok(())
    }

    /// The item of `key`, protected; inserts what `value` returns if there is none. If another
    /// writer inserts one first, that is the result.
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// assert_eq!(*map.get_or_insert_with("a", || 1), 1);
    /// assert_eq!(*map.get_or_insert_with("a", || unreachable!()), 1);
    /// ```
    pub fn get_or_insert_with(&self, key: K, value: impl FnOnce() -> V) -> Held<'_, K, V> {
        let hash = self.hasher.hash_one(&key);
        if let Some(held) = self.protect_hashed(&key, hash) {
            return held;
        }
        let mut new = item(hash, key, value());
        loop {
            match self.publish(new) {
                Ok(held) => return held,
                Err(back) => new = back,
            }
            if let Some(held) = self.protect_hashed(&new.pair.key, hash) {
                return held;
            }
        }
    }

    /// Read, copy, update: replaces the value of `key` by `f(&value)`; returns the item that was
    /// there, protected. If another writer comes first, `f` runs again.
    ///
    /// ```
    /// let map: reprieve::structures::Map<_, _> = [("a", 1)].into_iter().collect();
    /// assert_eq!(*map.update("a", |value| value + 1).unwrap(), 1);
    /// assert_eq!(map.copied("a"), Some(2));
    /// assert!(map.update("b", |value| value + 1).is_none());
    /// ```
    pub fn update<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> V) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q> + Clone,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        loop {
            let old = self.protect_hashed(key, hash)?;
            let new = item(hash, old.key().clone(), f(&old));
            if self.replace_item(&old, new).is_ok() {
                return Some(old);
            }
        }
    }

    /// Sets, removes or keeps `key`, as `f` says of its value. Returns the item that `f` saw last,
    /// protected. If another writer comes first, `f` runs again.
    ///
    /// ```
    /// use reprieve::structures::map::{Change, Map};
    /// let map = Map::new();
    /// let count_down = |key| {
    ///     map.compute(key, |value| match value {
    ///         None => Change::Set(2),
    ///         Some(1) => Change::Remove,
    ///         Some(n) => Change::Set(n - 1),
    ///     })
    ///     .map(|old| *old)
    /// };
    /// assert_eq!([(); 4].map(|_| count_down("a")), [None, Some(2), Some(1), None]);
    /// ```
    pub fn compute(
        &self,
        mut key: K,
        mut f: impl FnMut(Option<&V>) -> Change<V>,
    ) -> Option<Held<'_, K, V>> {
        let hash = self.hasher.hash_one(&key);
        loop {
            let old = self.protect_hashed(&key, hash);
            match (f(old.as_deref()), &old) {
                (Change::Keep, _) | (Change::Remove, None) => return old,
                (Change::Remove, Some(item)) => {
                    if self.remove_item(item) {
                        return old;
                    }
                }
                (Change::Set(value), _) => {
                    let new = item(hash, key, value);
                    let set = match &old {
                        Some(old) => self.replace_item(old, new),
                        None => self.publish(new).map(drop),
                    };
                    match set {
                        Ok(()) => return old,
                        Err(new) => key = new.into_value().pair.key,
                    }
                }
            }
        }
    }

    /// Replaces the value of the item that the caller holds, if it is still in the map.
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// map.insert("a", 1);
    /// let first = map.protect("a").unwrap();
    /// assert_eq!(map.replace(&first, 2), Ok(()));
    /// assert_eq!(map.replace(&first, 3), Err(3));
    /// assert_eq!((*first, map.copied("a")), (1, Some(2)));
    /// ```
    ///
    /// # Errors
    /// The value, if it is not.
    pub fn replace(&self, held: &Held<'_, K, V>, value: V) -> Result<(), V>
    where
        K: Clone,
    {
        let new = item(Item::hash_of(held), held.key().clone(), value);
        self.replace_item(held, new).map_err(|new| new.into_value().pair.value)
    }

    /// Takes `key` out, and returns its item, protected.
    ///
    /// ```
    /// let map: reprieve::structures::Map<_, _> = [("a".to_string(), 1)].into_iter().collect();
    /// assert_eq!(*map.remove("a").unwrap(), 1);
    /// assert!(map.remove("a").is_none());
    /// ```
    pub fn remove<Q>(&self, key: &Q) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let locked = self.table.lock(hash);
        let place = locked.find(hash, |item| item.pair.key.borrow() == key)?;
        Some(self.remove_at(locked, place))
    }

    /// Takes `key` out if `f` says so of its value. If another writer comes first, `f` runs again.
    ///
    /// ```
    /// let map: reprieve::structures::Map<_, _> = [("a", 1)].into_iter().collect();
    /// assert!(map.remove_if("a", |value| *value > 1).is_none());
    /// assert_eq!(*map.remove_if("a", |value| *value == 1).unwrap(), 1);
    /// ```
    pub fn remove_if<Q>(&self, key: &Q, mut f: impl FnMut(&V) -> bool) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        loop {
            let held = self.protect_hashed(key, hash)?;
            if !f(&held) {
                return None;
            }
            if self.remove_item(&held) {
                return Some(held);
            }
        }
    }

    /// Removes the items for which `keep` does not hold: a scan, as [`iter`](Map::iter), for which
    /// no grace period waits. An item that replaces one meanwhile may stay unseen.
    ///
    /// ```
    /// let map: reprieve::structures::Map<_, _> = (0..9).map(|n| (n, n * n)).collect();
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
    /// let map: reprieve::structures::Map<_, _> = (0..9).map(|n| (n, n)).collect();
    /// map.clear();
    /// assert!(map.is_empty());
    /// ```
    pub fn clear(&self) {
        self.retain(|_, _| false);
    }

    /// Inserts the item, and protects it, unless its key is there.
    fn publish(&self, new: New<K, V>) -> Result<Held<'_, K, V>, New<K, V>> {
        let (hash, locked) = (new.hash, self.table.lock(new.hash));
        if locked.find(hash, |item| item.pair.key == new.pair.key).is_some() {
            return Err(new);
        }
        let new = new.into_node();
        // SAFETY: not published, hence not retired.
        let held = unsafe { Item::hold(handle::protect_own(&self.domain, new)) };
        locked.insert(new);
        self.written(locked);
        Ok(held)
    }

    /// Puts the new item, which has the same key, in the place of the old one, if that is still
    /// there.
    fn replace_item(&self, old: &Held<'_, K, V>, new: New<K, V>) -> Result<(), New<K, V>> {
        let (hash, locked) = (new.hash, self.table.lock(new.hash));
        match locked.find(hash, |item| std::ptr::eq(&item.pair, old.pair())) {
            Some(place) => _ = self.replace_at(locked, place, new),
            None => return Err(new),
        }
        Ok(())
    }

    /// Takes the item out, if it is still there.
    fn remove_item(&self, held: &Held<'_, K, V>) -> bool {
        let hash = Item::hash_of(held);
        let locked = self.table.lock(hash);
        match locked.find(hash, |item| std::ptr::eq(&item.pair, held.pair())) {
            Some(place) => _ = self.remove_at(locked, place),
            None => return false,
        }
        true
    }

    fn replace_at(
        &self,
        locked: Locked<'_, K, V>,
        place: Position<K, V>,
        new: New<K, V>,
    ) -> Held<'_, K, V> {
        let old = locked.replace(place, new.into_node());
        self.written(locked);
        self.retire(old)
    }

    fn remove_at(&self, locked: Locked<'_, K, V>, place: Position<K, V>) -> Held<'_, K, V> {
        let old = locked.remove(place);
        drop(locked);
        self.retire(old)
    }

    /// Protects an item that was just unlinked, by us alone, and retires it.
    fn retire(&self, item: *mut Item<K, V>) -> Held<'_, K, V> {
        // SAFETY: not retired yet; then, unlinked.
        unsafe {
            let held = Item::hold(handle::protect_own(&self.domain, item));
            node::retire(self.domain.domain(), item);
            held
        }
    }
}
