// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of a map, each under the lock of the key's stripe: what `calls` stands on.

use super::hash_map::Map;
use super::iter::Iter;
use super::table::{Item, Locked, Position};
use crate::structures::calls::{Change, map_calls};
use crate::structures::handle::{self, Global, Handle};
use crate::structures::held::Held;
use crate::structures::node::{self, Pair, Unpublished};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

/// An item that is in no map.
type New<K, V> = Unpublished<Item<K, V>>;

impl<K, V> New<K, V> {
    fn key(&self) -> &K {
        &self.pair.key
    }

    fn into_pair(self) -> Pair<K, V> {
        self.into_value().pair
    }
}

map_calls!(Map<K, V, D, S>: "Map", Hash Eq);

impl<K, V, S: BuildHasher + Default> Map<K, V, Global, S> {
    fn sized(items: usize) -> Self {
        Map::builder().hasher(S::default()).chains(items).build()
    }
}

/// A place is a hash.
impl<K, V, D, S> Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    fn place<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    fn place_of(held: &Held<'_, K, V>) -> u64 {
        Item::hash_of(held)
    }

    fn item(&self, hash: u64, key: K, value: V) -> New<K, V> {
        // SAFETY: fresh.
        unsafe { Unpublished::new(Item::allocate(hash, key, value)) }
    }

    fn set(&self, new: New<K, V>) -> Option<Held<'_, K, V>> {
        let locked = self.table.lock(new.hash);
        match locked.find(new.hash, |item| item.pair.key == *new.key()) {
            Some(place) => Some(self.replace_at(locked, place, new)),
            None => {
                locked.insert(new.into_node());
                self.written(locked);
                None
            }
        }
    }

    fn publish(&self, new: New<K, V>) -> Result<Held<'_, K, V>, New<K, V>> {
        let locked = self.table.lock(new.hash);
        if locked.find(new.hash, |item| item.pair.key == *new.key()).is_some() {
            return Err(new);
        }
        let new = new.into_node();
        // SAFETY: not published, hence not retired.
        let held = unsafe { Item::hold(handle::protect_own(&self.domain, new)) };
        locked.insert(new);
        self.written(locked);
        Ok(held)
    }

    fn replace_item(&self, old: &Held<'_, K, V>, new: New<K, V>) -> Result<(), New<K, V>> {
        let locked = self.table.lock(new.hash);
        match locked.find(new.hash, |item| std::ptr::eq(&item.pair, old.pair())) {
            Some(place) => _ = self.replace_at(locked, place, new),
            None => return Err(new),
        }
        Ok(())
    }

    fn remove_item(&self, held: &Held<'_, K, V>) -> bool {
        let hash = Item::hash_of(held);
        let locked = self.table.lock(hash);
        match locked.find(hash, |item| std::ptr::eq(&item.pair, held.pair())) {
            Some(place) => _ = self.remove_at(locked, place),
            None => return false,
        }
        true
    }

    fn take<Q>(&self, key: &Q, hash: u64) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let locked = self.table.lock(hash);
        let place = locked.find(hash, |item| item.pair.key.borrow() == key)?;
        Some(self.remove_at(locked, place))
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
