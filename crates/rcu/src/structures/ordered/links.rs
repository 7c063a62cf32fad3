// SPDX-License-Identifier: MIT OR Apache-2.0
//! The skip list under [`OrderedMap`](super::OrderedMap): a sorted list of all items at level 0,
//! and at each level above a list of about a quarter of the items below (Pugh, "Skip Lists: A
//! Probabilistic Alternative to Balanced Trees", 1990).
//!
//! # Marks
//! A link is the address of the next item, 0 at the end. The links of an item that was taken out
//! have [`MARK`] set, for good. A writer sets the marks under the lock under which it took the item
//! out. So, whatever comes next,
//!
//! > **Invariant.** An item is marked before another writer retires an item to which its links
//! > lead.
//!
//! which is the promise that checkpoints ask for (`thread/checkpoints.rs`). Mark and address are
//! one word: a reader that finds a link without a mark has, in the same load, looked for the mark.
//!
//! The marks come last, after every link to the item is gone. A reader that finds a mark starts at
//! the head, and cannot find that item again: it makes progress even if the writer is preempted.
//!
//! # Order
//! A writer fills in an item's links before it publishes the item (release) at level 0, then above.
//! A removed item leaves the levels above first. So an item that a search finds above is at level 0
//! until its removal. A replacement changes level 0 with one store: readers find the old item or
//! the new one.

use crate::platform::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::structures::lock::Lock;
use crate::structures::node::Pair;
use crate::thread::head::Head;
#[cfg(not(loom))]
use crate::{read::protected::Protected, structures::held::Held};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cmp;
use std::ptr::null_mut;

#[cfg(not(loom))]
pub(crate) const LEVELS: usize = 16;
#[cfg(loom)]
pub(crate) const LEVELS: usize = 2;

/// In a link: its item was taken out.
pub(crate) const MARK: usize = 1;

pub(crate) type Link<K, V> = AtomicPtr<Item<K, V>>;

/// A key with its value. The address of an item is that of its node. As many links as the item is
/// high follow.
#[repr(C)]
pub(crate) struct Item<K, V> {
    /// Of the callback that frees the item.
    pub(crate) head: Head,
    height: usize,
    pub(crate) pair: Pair<K, V>,
}

impl<K, V> Item<K, V> {
    const LINKS: usize = size_of::<Self>().next_multiple_of(align_of::<Link<K, V>>());

    fn layout(height: usize) -> Layout {
        let align = align_of::<Self>().max(align_of::<Link<K, V>>());
        let size = Self::LINKS + height * size_of::<Link<K, V>>();
        Layout::from_size_align(size, align).expect("an item that fits into memory")
    }

    /// An item in no list. `height`: 1 to [`LEVELS`].
    pub(crate) fn allocate(height: usize, key: K, value: V) -> *mut Item<K, V> {
        let layout = Self::layout(height);
        // SAFETY: not of size 0; the links lie in the allocation, behind the item.
        unsafe {
            let item: *mut Self = alloc(layout).cast();
            if item.is_null() {
                handle_alloc_error(layout);
            }
            item.write(Item { head: Head::new(), height, pair: Pair { key, value } });
            for level in 0..height {
                Self::link(item, level).cast_mut().write(AtomicPtr::new(null_mut()));
            }
            item
        }
    }

    /// Frees an item now.
    ///
    /// # Safety
    /// From [`allocate`](Item::allocate), and nobody else's (any more).
    pub(crate) unsafe fn free(item: *mut Item<K, V>) {
        // SAFETY: the caller's promise. Links need no drop.
        unsafe {
            let layout = Self::layout((*item).height);
            item.drop_in_place();
            dealloc(item.cast(), layout);
        }
    }

    /// Frees an item that was never published, and returns its key and value.
    ///
    /// # Safety
    /// As for [`free`](Item::free).
    #[cfg(not(loom))]
    pub(super) unsafe fn take(item: *mut Item<K, V>) -> Pair<K, V> {
        // SAFETY: the caller's promise. Nothing else in an item needs a drop.
        unsafe {
            let pair = (&raw const (*item).pair).read();
            dealloc(item.cast(), Self::layout((*item).height));
            pair
        }
    }

    /// The item as what a program holds of it.
    #[cfg(not(loom))]
    pub(super) fn hold(item: Protected<'_, Item<K, V>>) -> Held<'_, K, V> {
        // SAFETY: makes an address.
        Held::new(item, |item| unsafe { &raw const (*item).pair })
    }

    #[cfg(not(loom))]
    pub(super) fn size(&self) -> usize {
        Self::layout(self.height).size()
    }

    /// The item's link of that level, which is below its height.
    pub(crate) fn link(item: *const Item<K, V>, level: usize) -> *const Link<K, V> {
        item.wrapping_byte_add(Self::LINKS).cast::<Link<K, V>>().wrapping_add(level)
    }

    /// Its key and value; `None` of a null pointer. A reference to the whole item would cover the
    /// head, which the item's retirement writes to while readers are on it.
    ///
    /// # Safety
    /// Null, or alive for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn pair<'a>(item: *const Item<K, V>) -> Option<&'a Pair<K, V>> {
        // SAFETY: the caller's promise.
        if item.is_null() { None } else { Some(unsafe { &(*item).pair }) }
    }

    /// 0 of a null pointer.
    ///
    /// # Safety
    /// Null or alive.
    unsafe fn height(item: *const Item<K, V>) -> usize {
        // SAFETY: the caller's promise.
        unsafe { item.as_ref() }.map_or(0, |item| item.height)
    }
}

/// Aligned so that lookups do not share the line of the writers.
#[cfg_attr(not(loom), repr(align(64)))]
struct Writers {
    lock: Lock,
    /// Written under the lock.
    len: AtomicUsize,
}

pub(crate) struct Levels<K, V> {
    head: [Link<K, V>; LEVELS],
    /// Levels that have had items. Grows only, under the lock.
    used: AtomicUsize,
    writers: Writers,
}

impl<K, V> Levels<K, V> {
    pub(crate) fn new() -> Levels<K, V> {
        Levels {
            head: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
            used: AtomicUsize::new(1),
            writers: Writers { lock: Lock::new(), len: AtomicUsize::new(0) },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.writers.len.load(Ordering::Relaxed)
    }

    /// The highest level at which a search need begin.
    pub(crate) fn top(&self) -> usize {
        self.used.load(Ordering::Relaxed) - 1
    }

    /// The link of that level of an item, or of the head if that is null.
    #[inline(always)]
    pub(crate) fn link(&self, before: *const Item<K, V>, level: usize) -> *const Link<K, V> {
        if before.is_null() { &self.head[level] } else { Item::link(before, level) }
    }

    /// The last item for which `below` holds, and the first for which it does not. It holds for all
    /// items up to some place.
    ///
    /// # Safety
    /// Called in a section of the map's domain, in which the results stay alive.
    pub(crate) unsafe fn find(&self, mut below: impl FnMut(&K) -> bool) -> Neighbours<K, V> {
        let mut found = Neighbours { before: null_mut(), after: null_mut() };
        for level in (0..=self.top()).rev() {
            loop {
                // SAFETY: everything reached in a section is alive in it, marked or not.
                let next = unsafe { next(self.link(found.before, level)) };
                // SAFETY: as above.
                let pair = unsafe { Item::pair(next) };
                if next == found.after || !pair.is_some_and(|pair| below(&pair.key)) {
                    found.after = next;
                    break;
                }
                found.before = next;
            }
        }
        found
    }

    /// Excludes other writers.
    pub(crate) fn lock(&self) -> Locked<'_, K, V> {
        self.writers.lock.lock();
        Locked(self)
    }
}

/// Follows a link, marked or not. Acquires the item.
///
/// # Safety
/// In a section in which the link is alive.
pub(crate) unsafe fn next<K, V>(link: *const Link<K, V>) -> *mut Item<K, V> {
    // SAFETY: the caller's promise.
    unsafe { (*link).load(Ordering::Acquire).map_addr(|next| next & !MARK) }
}

impl<K, V> Drop for Levels<K, V> {
    fn drop(&mut self) {
        // SAFETY: nobody else can reach the items.
        unsafe {
            let mut item = next(&self.head[0]);
            while !item.is_null() {
                let behind = next(Item::link(item, 0));
                Item::free(item);
                item = behind;
            }
        }
    }
}

/// The items on both sides of a place; null at the ends.
pub(crate) struct Neighbours<K, V> {
    pub(crate) before: *mut Item<K, V>,
    pub(crate) after: *mut Item<K, V>,
}

/// Where a key is, or would be.
pub(crate) struct Place<K, V> {
    /// At each level, the last link that belongs to a smaller key.
    links: [*const Link<K, V>; LEVELS],
    /// The key's item, or null.
    pub(crate) item: *mut Item<K, V>,
}

/// The list under its lock. What it takes out is the caller's to retire.
pub(crate) struct Locked<'a, K, V>(&'a Levels<K, V>);

impl<K, V> Locked<'_, K, V> {
    /// The place of the key with which `order` compares.
    pub(crate) fn find(&self, mut order: impl FnMut(&K) -> cmp::Ordering) -> Place<K, V> {
        let links = std::array::from_fn(|level| self.0.link(null_mut(), level));
        let mut place = Place { links, item: null_mut() };
        let (mut before, mut after) = (null_mut(), null_mut());
        for level in (0..=self.0.top()).rev() {
            loop {
                let link = self.0.link(before, level);
                // SAFETY: under the lock, nothing that is reached is taken out.
                let next = unsafe { (*link).load(Ordering::Relaxed) };
                if next != after && !next.is_null() {
                    // SAFETY: as above.
                    match order(unsafe { &(*next).pair.key }) {
                        cmp::Ordering::Less => {
                            before = next;
                            continue;
                        }
                        cmp::Ordering::Equal => place.item = next,
                        cmp::Ordering::Greater => (),
                    }
                }
                after = next;
                place.links[level] = link;
                break;
            }
        }
        place
    }

    /// Puts `new` in the place, if it is not null, and returns the item that was there, if any,
    /// which is out of the list then.
    ///
    /// # Safety
    /// The place was found under this lock, for the key of the new item, which is in no list.
    pub(crate) unsafe fn put(&self, place: &Place<K, V>, new: *mut Item<K, V>) -> *mut Item<K, V> {
        let old = place.item;
        // SAFETY: the links of the place are in the list, as is the old item.
        unsafe {
            let (from, to) = (Item::height(old), Item::height(new));
            let link = |level: usize| &*place.links[level];
            let behind = |level| match level < from {
                true => (*Item::link(old, level)).load(Ordering::Relaxed),
                false => link(level).load(Ordering::Relaxed),
            };
            for level in 0..to {
                (*Item::link(new, level)).store(behind(level), Ordering::Relaxed);
            }
            // Release: publishes the new item, or passes on the successor, perhaps another
            // thread's work.
            for level in (1..from).rev() {
                link(level).store(behind(level), Ordering::Release);
            }
            #[cfg(all(reprieve_fault, not(loom)))]
            if crate::platform::fault::is(crate::platform::fault::Fault::TwoSteps) {
                link(0).store(behind(0), Ordering::Release);
                crate::platform::fault::gap();
            }
            link(0).store(if to > 0 { new } else { behind(0) }, Ordering::Release);
            for level in 1..to {
                link(level).store(new, Ordering::Release);
            }
            for level in 0..from {
                let marked = behind(level).map_addr(|next| next | MARK);
                (*Item::link(old, level)).store(marked, Ordering::Release);
            }
            let Levels { used, writers, .. } = self.0;
            used.store(used.load(Ordering::Relaxed).max(to), Ordering::Relaxed);
            let len = self.0.len() + usize::from(to > 0) - usize::from(from > 0);
            writers.len.store(len, Ordering::Relaxed);
        }
        old
    }
}

impl<K, V> Drop for Locked<'_, K, V> {
    fn drop(&mut self) {
        self.0.writers.lock.unlock();
    }
}
