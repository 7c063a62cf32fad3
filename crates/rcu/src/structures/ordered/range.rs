// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans of a range of keys.
//!
//! A scan protects the item that it handed out last, and hops on from there. If that item was taken
//! out, a search finds the first key beyond: the item is still protected, and so is its key. So a
//! scan yields ascending keys whatever writers do, and
//!
//! > **Invariant.** An item that is in the map all the while is handed out once.

use super::links::{Item, Levels, next};
use super::search::{Hopped, Search, Slot, hop};
use crate::structures::handle::Handle;
use crate::structures::held::Held;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds, RangeFull};
use std::ptr::null;

/// Whether a key comes before a range.
pub(super) fn before<Q: Ord + ?Sized>(range: &impl RangeBounds<Q>, key: &Q) -> bool {
    match range.start_bound() {
        Bound::Included(start) => key < start,
        Bound::Excluded(start) => key <= start,
        Bound::Unbounded => false,
    }
}

/// Whether a key comes after a range.
pub(super) fn after<Q: Ord + ?Sized>(range: &impl RangeBounds<Q>, key: &Q) -> bool {
    match range.end_bound() {
        Bound::Included(end) => key > end,
        Bound::Excluded(end) => key >= end,
        Bound::Unbounded => false,
    }
}

/// Keys and values in order, protected. See [`OrderedMap::range`](super::OrderedMap::range).
pub struct Range<'m, Q: ?Sized, R, K, V, D> {
    levels: &'m Levels<K, V>,
    domain: &'m D,
    range: R,
    /// The item that was handed out last, and its slot.
    last: (*const Item<K, V>, Slot),
    spare: Slot,
    over: bool,
    keys: PhantomData<fn(&Q)>,
}

/// All keys and values.
pub type Iter<'m, K, V, D> = Range<'m, K, RangeFull, K, V, D>;

impl<'m, Q: ?Sized, R, K, V, D: Handle> Range<'m, Q, R, K, V, D> {
    pub(super) fn new(levels: &'m Levels<K, V>, domain: &'m D, range: R) -> Self {
        let [last, spare] = std::array::from_fn(|_| Slot::reserve(domain));
        let last = (null(), last);
        Range { levels, domain, range, last, spare, over: false, keys: PhantomData }
    }
}

impl<'m, Q, R, K, V, D> Iterator for Range<'m, Q, R, K, V, D>
where
    Q: Ord + ?Sized,
    R: RangeBounds<Q>,
    K: Borrow<Q> + 'static,
    V: 'static,
    D: Handle,
{
    type Item = Held<'m, K, V>;

    fn next(&mut self) -> Option<Held<'m, K, V>> {
        if self.over {
            return None;
        }
        let handed = Slot::reserve(self.domain);
        let last = self.last.0;
        // SAFETY: items are retired through this domain; the last one is in its slot.
        unsafe {
            let link = self.levels.link(last, 0);
            let hopped = match last.is_null() {
                true => Hopped::Lost,
                false => hop(self.domain, link, &self.spare, Some(&handed)),
            };
            match hopped {
                Hopped::Item(item) => {
                    self.last.0 = item;
                    std::mem::swap(&mut self.last.1, &mut self.spare);
                }
                Hopped::Lost => {
                    let last: Option<&Q> = Item::pair(last).map(|last| last.key.borrow());
                    let below = |key: &K| match last {
                        Some(last) => key.borrow() <= last,
                        None => before(&self.range, key.borrow()),
                    };
                    let search = Search::run(self.levels, self.domain, below, Some(&handed));
                    self.last = search.into_after();
                }
                Hopped::End => self.last.0 = null(),
            }
            let item = self.last.0;
            self.over = item.is_null() || after(&self.range, (*item).pair.key.borrow());
            (!self.over).then(|| handed.hold(item))
        }
    }
}

/// Keys and values in order, in a section. See
/// [`OrderedMap::range_in`](super::OrderedMap::range_in).
pub struct RangeIn<'g, Q: ?Sized, R, K, V> {
    item: *const Item<K, V>,
    range: R,
    keys: PhantomData<fn(&Q)>,
    section: PhantomData<(&'g (K, V), *mut ())>,
}

impl<Q: Ord + ?Sized, R: RangeBounds<Q>, K: Borrow<Q>, V> RangeIn<'_, Q, R, K, V> {
    /// For use in a section that lasts for `'g`.
    pub(super) fn new(levels: &Levels<K, V>, range: R) -> Self {
        // SAFETY: in the section.
        let item = unsafe { levels.find(|key| before(&range, key.borrow())).after };
        RangeIn { item, range, keys: PhantomData, section: PhantomData }
    }
}

impl<'g, Q: Ord + ?Sized, R: RangeBounds<Q>, K: Borrow<Q>, V> Iterator for RangeIn<'g, Q, R, K, V> {
    type Item = (&'g K, &'g V);

    fn next(&mut self) -> Option<(&'g K, &'g V)> {
        // SAFETY: in the section in which it was made, in which the item stays alive.
        unsafe {
            let pair = Item::pair(self.item)?;
            if after(&self.range, pair.key.borrow()) {
                self.item = null();
                return None;
            }
            self.item = next(Item::link(self.item, 0));
            Some((&pair.key, &pair.value))
        }
    }
}
