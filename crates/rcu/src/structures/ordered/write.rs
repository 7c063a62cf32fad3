// SPDX-License-Identifier: MIT OR Apache-2.0
//! Updates of an ordered map, under its lock: what `calls` stands on.

use super::links::{Item, LEVELS, Locked, Place};
use super::ordered_map::OrderedMap;
use super::range::Iter;
use crate::structures::calls::{Change, map_calls};
use crate::structures::handle::{self, Global, Handle};
use crate::structures::held::Held;
use crate::structures::node::Pair;
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

    fn into_pair(self) -> Pair<K, V> {
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

map_calls!(OrderedMap<K, V, D>: "OrderedMap", Ord);

/// Searches begin at the head of the list.
#[derive(Clone, Copy)]
struct Start;

impl<K, V> OrderedMap<K, V>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn sized(_: usize) -> Self {
        OrderedMap::new()
    }
}

impl<K, V, D> OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
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

    fn place<Q: ?Sized>(&self, _: &Q) -> Start {
        Start
    }

    fn place_of(_: &Held<'_, K, V>) -> Start {
        Start
    }

    fn protect_at<Q>(&self, key: &Q, _: Start) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.protect(key)
    }

    /// Of height 1, 2, 3 and so on, each four times as rare as the one before.
    fn item(&self, _: Start, key: K, value: V) -> New<K, V> {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let mut x = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let height = 1 + (x ^ (x >> 31)).trailing_zeros() as usize / 2;
        New(Item::allocate(height.min(LEVELS), key, value))
    }

    fn set(&self, new: New<K, V>) -> Option<Held<'_, K, V>> {
        let locked = self.levels.lock();
        let place = locked.find(|k| k.cmp(new.key()));
        self.put(locked, &place, new.into_item())
    }

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

    fn replace_item(&self, held: &Held<'_, K, V>, new: New<K, V>) -> Result<(), New<K, V>> {
        match self.find_item(held) {
            Some((locked, place)) => drop(self.put(locked, &place, new.into_item())),
            None => return Err(new),
        }
        Ok(())
    }

    fn remove_item(&self, held: &Held<'_, K, V>) -> bool {
        match self.find_item(held) {
            Some((locked, place)) => drop(self.put(locked, &place, null_mut())),
            None => return false,
        }
        true
    }

    fn take<Q>(&self, key: &Q, _: Start) -> Option<Held<'_, K, V>>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let locked = self.levels.lock();
        let place = locked.find(|k| k.borrow().cmp(key));
        self.put(locked, &place, null_mut())
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
        let pair = unsafe { Item::pair(place.item) }?;
        std::ptr::eq(pair, held.pair()).then_some((locked, place))
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
