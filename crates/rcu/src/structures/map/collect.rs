// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map from an iterator, and as one.

use super::hash_map::Map;
use super::iter::Iter;
use crate::structures::handle::{Global, Handle};
use crate::structures::held::Held;
use std::hash::{BuildHasher, Hash};

/// ```
/// use reprieve::structures::Map;
/// let mut map: Map<_, _> = [(1, "a"), (2, "b"), (1, "c")].into_iter().collect();
/// assert_eq!((map.copied(&1), map.len()), (Some("c"), 2));
/// map.extend([(3, "d")]);
/// (&map).extend([(4, "e")]); // shared, too
/// assert_eq!((&map).into_iter().count(), 4);
/// ```
impl<K, V, S> FromIterator<(K, V)> for Map<K, V, Global, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    S: BuildHasher + Default,
{
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
        let items = items.into_iter();
        let builder = Map::builder().hasher(S::default()).chains(items.size_hint().0);
        let map = builder.build();
        (&map).extend(items);
        map
    }
}

impl<K, V, D, S> Extend<(K, V)> for &Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        items.into_iter().for_each(|(key, value)| _ = self.insert(key, value));
    }
}

impl<K, V, D, S> Extend<(K, V)> for Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        (&*self).extend(items);
    }
}

impl<'m, K, V, D, S> IntoIterator for &'m Map<K, V, D, S>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
    S: BuildHasher,
{
    type Item = Held<'m, K, V>;
    type IntoIter = Iter<'m, K, V, D>;

    fn into_iter(self) -> Iter<'m, K, V, D> {
        self.iter()
    }
}
