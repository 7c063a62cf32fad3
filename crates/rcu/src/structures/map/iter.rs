// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walking through all of a map.

use super::table::{Table, Walk};
use std::marker::PhantomData;

/// Keys and values. See [`Map::iter`](super::Map::iter).
pub struct Iter<'g, K, V> {
    walk: Walk<K, V>,
    section: PhantomData<(&'g (K, V), *mut ())>,
}

impl<'g, K, V> Iter<'g, K, V> {
    /// For use in a section that lasts for `'g`.
    pub(super) fn new(table: &'g Table<K, V>) -> Iter<'g, K, V> {
        Iter { walk: Walk::new(table), section: PhantomData }
    }
}

impl<'g, K, V> Iterator for Iter<'g, K, V> {
    type Item = (&'g K, &'g V);

    fn next(&mut self) -> Option<(&'g K, &'g V)> {
        // SAFETY: in the section in which it was made, in which the item stays alive.
        unsafe {
            let item = self.walk.next()?.as_ref();
            Some((&item.pair.key, &item.pair.value))
        }
    }
}
