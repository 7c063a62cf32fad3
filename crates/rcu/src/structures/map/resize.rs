// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a map's table changes its size.

use super::hash_map::Map;
use super::table::{Locked, STRIPES, Table};
use crate::structures::array::Array;
use crate::structures::handle::Handle;

/// A table with chains so many times too long is far too small.
const FAR: usize = 4;

impl<K, V, D: Handle, S> Map<K, V, D, S> {
    /// Grows the table if it is time. After replacements, too: keys that came faster than grace
    /// periods have left it too small.
    pub(super) fn written(&self, locked: Locked<'_, K, V>) {
        let (items, chains) = (locked.items().saturating_mul(STRIPES), locked.chains());
        drop(locked);
        if items > chains.saturating_mul(self.load) {
            self.grow(items, chains);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&self, items: usize, chains: usize) {
        let far_too_small = items / FAR > chains.saturating_mul(self.load);
        self.resize(chains, self.fitting(items).max(chains * 2), far_too_small);
    }

    /// Gives the table the number of chains that its items need, but no fewer than it began with.
    /// (Nothing happens if another thread changes the size, or if the last change was just now and
    /// a reader is inside a plain section since.)
    ///
    /// ```
    /// let map = reprieve::structures::Map::new();
    /// (0..1000).for_each(|n| _ = map.insert(n, n));
    /// map.retain(|key, _| *key < 10);
    /// map.shrink_to_fit();
    /// assert!(map.chains() < 1000 && map.copied(&9) == Some(9));
    /// ```
    pub fn shrink_to_fit(&self) {
        let (chains, len) = (self.chains(), self.fitting(self.len()));
        if len < chains {
            self.resize(chains, len, true);
        }
    }

    fn fitting(&self, items: usize) -> usize {
        Table::<K, V>::size(items / self.load).max(self.least)
    }

    /// Replaces the table, if it still has so many chains, by one that has `len`. Not before the
    /// grace period of the last replacement is over. If `now`, makes that grace period, unless a
    /// reader is inside a plain section.
    fn resize(&self, chains: usize, len: usize, now: bool) {
        // Somebody else replaces it, or somebody's panic (for want of memory) has left it in an
        // unknown state: go on with the chains as they are.
        let Ok(mut last) = self.growth.try_lock() else {
            return;
        };
        let domain = self.domain.domain();
        let over = |cookie| domain.poll(cookie) || now && domain.try_grace_period();
        if last.is_some_and(|cookie| !over(cookie)) || self.chains() != chains {
            return;
        }
        // SAFETY: under `growth`, and the last replacement's grace period is over. The chains are
        // not reachable any more.
        unsafe {
            let old = self.table.relink(len);
            *last = Some(domain.start_poll());
            drop(last);
            Array::retire(domain, old);
        }
    }
}
