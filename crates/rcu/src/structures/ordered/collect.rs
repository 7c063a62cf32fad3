// SPDX-License-Identifier: MIT OR Apache-2.0
//! An ordered map from an iterator, and as one.

use super::ordered_map::OrderedMap;
use super::range::Range;
use crate::structures::handle::Handle;
use crate::structures::held::Held;
use std::ops::RangeFull;

/// ```
/// use reprieve::structures::OrderedMap;
/// let mut map: OrderedMap<_, _> = [(2, "b"), (1, "a"), (2, "c")].into_iter().collect();
/// map.extend([(3, "d")]);
/// (&map).extend([(0, "e")]); // shared, too
/// assert_eq!((&map).into_iter().map(|item| *item).collect::<String>(), "eacd");
/// ```
impl<K, V> FromIterator<(K, V)> for OrderedMap<K, V>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn from_iter<I: IntoIterator<Item = (K, V)>>(items: I) -> Self {
        let map = OrderedMap::new();
        (&map).extend(items);
        map
    }
}

impl<K, V, D> Extend<(K, V)> for &OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        items.into_iter().for_each(|(key, value)| _ = self.insert(key, value));
    }
}

impl<K, V, D> Extend<(K, V)> for OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, items: I) {
        (&*self).extend(items);
    }
}

impl<'m, K, V, D> IntoIterator for &'m OrderedMap<K, V, D>
where
    K: Ord + Send + Sync + 'static,
    V: Send + Sync + 'static,
    D: Handle,
{
    type Item = Held<'m, K, V>;
    type IntoIter = Range<'m, K, RangeFull, K, V, D>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
