// SPDX-License-Identifier: MIT OR Apache-2.0
//! A key of a map, and what to do if it is there or not.

use super::hash_map::Map;
use crate::structures::handle::Handle;
use crate::structures::held::Held;
use std::hash::{BuildHasher, Hash};

/// A key of a map, in the map or not. See [`Map::entry`].
pub struct Entry<'m, K, V, D, S> {
    map: &'m Map<K, V, D, S>,
    key: K,
}

impl<K, V, D, S> Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    /// The key's entry. It holds no lock: each of its calls looks the key up, and other writers may
    /// come in between.
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// for word in ["a", "b", "a"] {
    ///     map.entry(word).and_modify(|count| count + 1).or_insert(1);
    /// }
    /// assert_eq!((map.copied("a"), map.copied("b")), (Some(2), Some(1)));
    /// assert_eq!(*map.entry("c").or_default(), 0);
    /// assert_eq!(*map.entry("d").or_insert_with(|| 7), 7);
    /// ```
    pub fn entry(&self, key: K) -> Entry<'_, K, V, D, S> {
        Entry { map: self, key }
    }
}

impl<'m, K, V, D, S> Entry<'m, K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Replaces the value, if there is one, as [`Map::update`] does.
    #[must_use = "to insert a value if there is none"]
    pub fn and_modify(self, f: impl FnMut(&V) -> V) -> Self
    where
        K: Clone,
    {
        self.map.update(&self.key, f);
        self
    }

    /// The item, protected; inserts this value if there is none.
    pub fn or_insert(self, value: V) -> Held<'m, K, V> {
        self.or_insert_with(|| value)
    }

    /// The item, protected; inserts the result of `value` if there is none, as
    /// [`Map::get_or_insert_with`] does.
    pub fn or_insert_with(self, value: impl FnOnce() -> V) -> Held<'m, K, V> {
        self.map.get_or_insert_with(self.key, value)
    }

    /// The item, protected; inserts the default value if there is none.
    pub fn or_default(self) -> Held<'m, K, V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}
