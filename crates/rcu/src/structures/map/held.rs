// SPDX-License-Identifier: MIT OR Apache-2.0
//! An item of a map as a guard.

use super::table::Item;
use crate::read::protected::{AnyThread, Protected, ThisThread};
use std::ops::Deref;

/// An item of a map, kept alive for as long as this lives. Derefs to the value.
pub struct Held<'m, K, V, A = ThisThread>(Protected<'m, Item<K, V>, A>);

impl<'m, K, V> Held<'m, K, V> {
    pub(super) fn new(item: Protected<'m, Item<K, V>>) -> Held<'m, K, V> {
        Held(item)
    }

    /// Lets the guard move to other threads: see [`Protected::detach`].
    pub fn detach(self) -> Held<'m, K, V, AnyThread> {
        Held(self.0.detach())
    }
}

impl<'m, K, V, A> Held<'m, K, V, A> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.0.pair.key
    }

    /// The value alone.
    pub fn into_value(self) -> Protected<'m, V, A> {
        Protected::map(self.0, |item| &item.pair.value)
    }

    pub(super) fn hash(&self) -> u64 {
        self.0.hash
    }

    /// Which item it is: no other has the address before this is dropped.
    pub(super) fn item(&self) -> *const Item<K, V> {
        &raw const *self.0
    }
}

impl<K, V, A> Deref for Held<'_, K, V, A> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        &self.0.pair.value
    }
}

impl<K: std::fmt::Debug, V: std::fmt::Debug, A> std::fmt::Debug for Held<'_, K, V, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(self.key()).field(&**self).finish()
    }
}
