// SPDX-License-Identifier: MIT OR Apache-2.0
//! An item of a map, hashed or ordered, as a guard.

use super::node::Pair;
use crate::read::protected::{AnyThread, Protected, ThisThread};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// An item of a map, kept alive for as long as this lives. Derefs to the value.
pub struct Held<'m, K, V, A = ThisThread>(Protected<'m, Pair<K, V>, A>);

impl<'m, K, V> Held<'m, K, V> {
    /// The item, whose pair that is.
    pub(super) fn new<T>(
        item: Protected<'m, T>,
        pair: impl FnOnce(*const T) -> *const Pair<K, V>,
    ) -> Held<'m, K, V> {
        // SAFETY: a part of the node, hence not null.
        Held(unsafe { item.part(|item| NonNull::new_unchecked(pair(item.as_ptr()).cast_mut())) })
    }

    /// The slot, which the caller empties.
    pub(crate) fn into_slot(self) -> &'static AtomicUsize {
        self.0.into_slot()
    }

    /// Lets the guard move to other threads: see [`Protected::detach`].
    pub fn detach(self) -> Held<'m, K, V, AnyThread> {
        Held(self.0.detach())
    }
}

impl<'m, K, V, A> Held<'m, K, V, A> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.0.key
    }

    /// The value alone.
    pub fn into_value(self) -> Protected<'m, V, A> {
        Protected::map(self.0, |pair| &pair.value)
    }

    /// Where it is in its item. No other item has the address before this is dropped.
    pub(super) fn pair(&self) -> *const Pair<K, V> {
        self.0.as_ptr()
    }
}

impl<K, V, A> Deref for Held<'_, K, V, A> {
    type Target = V;

    #[inline(always)]
    fn deref(&self) -> &V {
        &self.0.value
    }
}

impl<K: std::fmt::Debug, V: std::fmt::Debug, A> std::fmt::Debug for Held<'_, K, V, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(self.key()).field(&**self).finish()
    }
}
