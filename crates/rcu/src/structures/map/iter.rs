// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans of a map.
//!
//! # The order of places
//! A table of 2^b chains keeps an item in the chain of its hash's lowest b bits. Ordered by their
//! hashes *read from the lowest bit to the highest*, the items of one chain follow each other,
//! whatever b is: growth splits chains and reorders nothing. So a place is a hash, a scan goes on
//! behind the last one, in whatever table is current then, and
//!
//! > **Invariant.** An item that is in the map all the while is handed out once: when the scan
//! > passes its hash.
//!
//! (Redis's `SCAN` walks its buckets in this order.) Each part of a scan finds its place again by
//! the hash, from the table. So it needs no checkpoint: the only slot is that of the item handed
//! out.
//!
//! Items of equal hashes have the same place. A part that finds several says so, and they are all
//! protected together, in a plain section that is as long as their chain.

use super::lookup::{Next, TWINS, after};
use super::table::{Item, Table, Walk};
use crate::read::protected::Protected;
use crate::read::restart::traversal::Pace;
use crate::structures::handle::{self, Handle};
use crate::structures::held::Held;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Keys and values, protected. See [`Map::iter`](super::Map::iter).
pub struct Iter<'m, K, V, D> {
    table: &'m Table<K, V>,
    domain: &'m D,
    /// Where the next part starts. `None`: the scan is over.
    place: Option<u64>,
    pace: Pace,
    /// Items of one place that are still to be handed out.
    twins: Vec<Held<'m, K, V>>,
}

impl<'m, K, V, D> Iter<'m, K, V, D> {
    pub(super) fn new(table: &'m Table<K, V>, domain: &'m D) -> Iter<'m, K, V, D> {
        Iter { table, domain, place: Some(0), pace: Pace::new(), twins: vec![] }
    }
}

impl<'m, K: 'static, V: 'static, D: Handle> Iter<'m, K, V, D> {
    /// Protects all items of a place.
    #[cold]
    fn protect_twins(&mut self, place: u64) {
        let _section = self.domain.read();
        // SAFETY: in a section of the domain, through which items are retired.
        unsafe {
            let domain = self.domain;
            self.table.find_all(place, |item| {
                if (*item).hash & !TWINS == place {
                    self.twins.push(Item::hold(handle::protect_found(domain, item)));
                }
            });
        }
    }
}

impl<'m, K: 'static, V: 'static, D: Handle> Iterator for Iter<'m, K, V, D> {
    type Item = Held<'m, K, V>;

    fn next(&mut self) -> Option<Held<'m, K, V>> {
        loop {
            if let Some(twin) = self.twins.pop() {
                return Some(twin);
            }
            let place = self.place?;
            let (chains, slot) = (&self.table.chains, handle::slots(self.domain).free());
            let part = |steps| Next { chains, place, steps };
            // SAFETY: nobody else fills the slot before this returns. Items and chains are retired
            // through this domain, items with the address that a part returns.
            let found = unsafe { handle::protect_part(self.domain, &self.pace, slot, part) };
            self.place = (found.word != 0).then_some(found.word as u64);
            let Some(item) = NonNull::new(found.node.cast_mut()) else { continue };
            // SAFETY: the part has filled the slot with the item.
            let found = unsafe { Protected::new(item, slot) };
            match self.place {
                Some(place) if place & TWINS != 0 => {
                    drop(found);
                    let place = place & !TWINS;
                    self.protect_twins(place);
                    self.place = Some(after(place, 1 << 62)).filter(|&place| place != 0);
                }
                _ => return Some(Item::hold(found)),
            }
        }
    }
}

/// Keys and values in a section. See [`Map::iter_in`](super::Map::iter_in).
pub struct IterIn<'g, K, V> {
    walk: Walk<K, V>,
    section: PhantomData<(&'g (K, V), *mut ())>,
}

impl<'g, K, V> IterIn<'g, K, V> {
    /// For use in a section that lasts for `'g`.
    pub(super) fn new(table: &'g Table<K, V>) -> IterIn<'g, K, V> {
        IterIn { walk: Walk::new(table), section: PhantomData }
    }
}

impl<'g, K, V> Iterator for IterIn<'g, K, V> {
    type Item = (&'g K, &'g V);

    fn next(&mut self) -> Option<(&'g K, &'g V)> {
        // SAFETY: in the section in which it was made, in which the item stays alive.
        unsafe {
            let item = self.walk.next()?.as_ref();
            Some((&item.pair.key, &item.pair.value))
        }
    }
}
