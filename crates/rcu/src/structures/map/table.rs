// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash table under [`Map`](super::Map): chains that readers walk without locks, and that grow
//! under them.
//!
//! # Two links
//! Each item has two `next` links, and a table uses one of them, its *side*. To grow, a writer
//! holding all locks threads every item into a table of the other side, then publishes that table
//! with one store. Readers in the old one go on along the old side's links, which nobody writes to
//! any more. (Herbert Xu's idea, as described in McKenney's "Is Parallel Programming Hard", section
//! 10.4.)
//!
//! > **Invariant.** The links of the side that is not the current table's are written to only when
//! > a grace period has passed since the current table was published: then no reader walks along
//! > them.
//!
//! Growing does not wait for that grace period. If it is not over, the table grows at a later
//! insertion.
//!
//! A reader of the old table misses items that are inserted after the growth, and may find items
//! that are removed after it: its section began before either, so its lookup may count as done
//! then, and an item that it finds is not freed before the section ends.
//!
//! # Order
//! A writer stores a new item's links and value before it publishes the item (release) in a chain,
//! and a table's chains before the table; readers acquire each link they follow. Removal and
//! replacement change one link, to the successor or the new item; the item taken out keeps its own
//! links, for readers who stand on it.
//!
//! # Locks
//! A chain belongs to one of [`STRIPES`] locks by the lowest bits of the hash, whatever the number
//! of chains. Writers hold one, growth holds all (in order).

use crate::platform::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::structures::array::Array;
use crate::structures::lock::Lock;
use crate::structures::node::{self, Pair};
use crate::thread::list::fetch;
#[cfg(not(loom))]
use crate::{read::protected::Protected, structures::held::Held};
#[cfg(not(loom))]
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};

#[cfg(not(loom))]
pub(crate) const STRIPES: usize = 16;
#[cfg(loom)]
pub(crate) const STRIPES: usize = 2;

/// Growth has the first item of the chain fetched that comes so many later.
const AHEAD: usize = 16;

/// A key with its value. The address of an item is that of its node.
#[repr(C)]
pub(crate) struct Item<K, V> {
    pub(super) next: [AtomicPtr<Item<K, V>>; 2],
    pub(crate) hash: u64,
    pub(crate) pair: Pair<K, V>,
}

impl<K, V> Item<K, V> {
    /// A node of its own, not yet in a chain.
    pub(crate) fn allocate(hash: u64, key: K, value: V) -> *mut Item<K, V> {
        let next = [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())];
        node::allocate(Item { next, hash, pair: Pair { key, value } })
    }

    #[cfg(not(loom))]
    pub(super) fn hold(item: Protected<'_, Item<K, V>>) -> Held<'_, K, V> {
        // SAFETY: makes an address.
        Held::new(item, |item| unsafe { &raw const (*item).pair })
    }

    #[cfg(not(loom))]
    pub(super) fn hash_of(held: &Held<'_, K, V>) -> u64 {
        // SAFETY: the pair of an item, which is kept.
        unsafe { (*held.pair().byte_sub(offset_of!(Item<K, V>, pair)).cast::<Item<K, V>>()).hash }
    }

    /// The link to follow in a table of that side. Acquires the item it leads to.
    fn next(&self, side: usize) -> *mut Item<K, V> {
        self.next[side & 1].load(Ordering::Acquire)
    }
}

/// A table's chains; `tag` is its side. The number of chains is a power of two, at least
/// [`STRIPES`].
pub(crate) type Chains<K, V> = Array<Item<K, V>>;

#[cfg_attr(not(loom), repr(align(64)))]
struct Stripe {
    lock: Lock,
    /// Items in its chains. Written under the lock.
    items: AtomicUsize,
}

pub(crate) struct Table<K, V> {
    pub(crate) chains: AtomicPtr<Chains<K, V>>,
    stripes: [Stripe; STRIPES],
}

impl<K, V> Table<K, V> {
    /// The number of chains of a table that is to have so many.
    pub(crate) fn size(chains: usize) -> usize {
        chains.next_power_of_two().max(STRIPES)
    }

    pub(crate) fn new(chains: usize) -> Table<K, V> {
        let chains = Self::size(chains);
        Table {
            chains: AtomicPtr::new(Array::allocate(chains, 0)),
            stripes: std::array::from_fn(|_| Stripe {
                lock: Lock::new(),
                items: AtomicUsize::new(0),
            }),
        }
    }

    /// The current chains. Acquires what the growth that made them wrote.
    pub(crate) fn chains(&self) -> *mut Chains<K, V> {
        self.chains.load(Ordering::Acquire)
    }

    pub(crate) fn len(&self) -> usize {
        self.stripes.iter().map(|s| s.items.load(Ordering::Relaxed)).sum()
    }

    /// The item of this hash and key.
    ///
    /// # Safety
    /// Called in a section of the map's domain, in which the result stays alive.
    #[inline(always)]
    pub(crate) unsafe fn find(
        &self,
        hash: u64,
        mut eq: impl FnMut(&K) -> bool,
    ) -> Option<NonNull<Item<K, V>>> {
        // SAFETY: everything reached in a section is alive in it; the index is below the number of
        // chains.
        unsafe {
            let chains = self.chains();
            let side = (*chains).tag;
            let mut item =
                (*Array::slot(chains, hash as usize & ((*chains).len - 1))).load(Ordering::Acquire);
            while let Some(found) = item.as_ref() {
                #[cfg(loom)]
                eq(&found.pair.key);
                if found.hash == hash && eq(&found.pair.key) {
                    break;
                }
                item = found.next(side);
            }
            NonNull::new(item)
        }
    }

    /// Calls `f` for all items in the chain of a hash.
    ///
    /// # Safety
    /// As for [`find`](Table::find).
    #[cfg(not(loom))]
    pub(crate) unsafe fn find_all(&self, hash: u64, mut f: impl FnMut(*mut Item<K, V>)) {
        // SAFETY: as in `find`.
        unsafe {
            let chains = self.chains();
            let mut item =
                (*Array::slot(chains, hash as usize & ((*chains).len - 1))).load(Ordering::Acquire);
            while !item.is_null() {
                f(item);
                item = (*item).next((*chains).tag);
            }
        }
    }

    /// Excludes other writers of the hash's chain, and growth.
    pub(crate) fn lock(&self, hash: u64) -> Locked<'_, K, V> {
        let stripe = &self.stripes[hash as usize & (STRIPES - 1)];
        stripe.lock.lock();
        Locked { stripe, chains: self.chains() }
    }

    /// Publishes a table of `len` chains ([`size`](Table::size)), and returns the old one to be
    /// freed after a grace period. Readers are not held up, other writers are.
    ///
    /// # Safety
    /// One call at a time. A grace period has passed since the last one's table was published.
    pub(crate) unsafe fn relink(&self, len: usize) -> *mut Chains<K, V> {
        let old = self.chains();
        // SAFETY: only this function replaces chains, so they are alive; all locks are held while
        // items are threaded; the links written are not those of the current side, and nobody
        // else's by the caller's promise. Relaxed: published below.
        unsafe {
            let (from, to) = ((*old).tag & 1, !(*old).tag & 1);
            let new = Array::allocate(len, to);
            self.stripes.iter().for_each(|s| s.lock.lock());
            let chains = Array::slots(old);
            for (i, chain) in chains.iter().enumerate() {
                // Items lie anywhere.
                if let Some(later) = chains.get(i + AHEAD) {
                    fetch(later.load(Ordering::Relaxed));
                }
                let mut next = chain.load(Ordering::Relaxed);
                while let Some(item) = next.as_ref() {
                    let chain = &*Array::slot(new, item.hash as usize & (len - 1));
                    item.next[to].store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
                    chain.store(next, Ordering::Relaxed);
                    next = item.next[from].load(Ordering::Relaxed);
                }
            }
            self.chains.store(new, Ordering::Release);
            self.stripes.iter().for_each(|s| s.lock.unlock());
        }
        old
    }
}

impl<K, V> Drop for Table<K, V> {
    fn drop(&mut self) {
        let chains = self.chains();
        // SAFETY: nobody else can reach the table or what is in it.
        unsafe {
            for chain in Array::slots(chains) {
                let mut item = chain.load(Ordering::Relaxed);
                while !item.is_null() {
                    let next = (*item).next((*chains).tag);
                    node::free(item);
                    item = next;
                }
            }
            Array::free(chains);
        }
    }
}

/// A locked chain. What it returns as unlinked is the caller's to retire.
pub(crate) struct Locked<'a, K, V> {
    stripe: &'a Stripe,
    chains: *mut Chains<K, V>,
}

/// An item in a chain, and the link that leads to it.
pub(crate) struct Position<K, V>(*const AtomicPtr<Item<K, V>>, *mut Item<K, V>);

impl<K, V> Locked<'_, K, V> {
    /// Number of chains in the table.
    pub(crate) fn chains(&self) -> usize {
        // SAFETY: the table does not change while a lock is held.
        unsafe { (*self.chains).len }
    }

    /// Items in the chains of this lock.
    pub(crate) fn items(&self) -> usize {
        self.stripe.items.load(Ordering::Relaxed)
    }

    fn count(&self, items: usize) {
        self.stripe.items.store(items, Ordering::Relaxed);
    }

    /// The first item of this hash for which `is` holds. Its chain is one of this lock's.
    pub(crate) fn find(
        &self,
        hash: u64,
        mut is: impl FnMut(&Item<K, V>) -> bool,
    ) -> Option<Position<K, V>> {
        // SAFETY: under the lock nothing is unlinked, and links do not move.
        unsafe {
            let mut link = Array::slot(self.chains, hash as usize & ((*self.chains).len - 1));
            loop {
                let item = (*link).load(Ordering::Relaxed);
                let found = item.as_ref()?;
                if found.hash == hash && is(found) {
                    return Some(Position(link, item));
                }
                link = &raw const (*item).next[(*self.chains).tag & 1];
            }
        }
    }

    /// Publishes an item at the head of its chain, which is one of this lock's.
    pub(crate) fn insert(&self, item: *mut Item<K, V>) {
        // SAFETY: the item is ours until it is published.
        unsafe {
            let chain =
                &*Array::slot(self.chains, (*item).hash as usize & ((*self.chains).len - 1));
            let next = &(*item).next[(*self.chains).tag & 1];
            next.store(chain.load(Ordering::Relaxed), Ordering::Relaxed);
            chain.store(item, Ordering::Release);
        }
        self.count(self.items() + 1);
    }

    /// Publishes `new` in place of the item there, which has the same hash.
    pub(crate) fn replace(
        &self,
        position: Position<K, V>,
        new: *mut Item<K, V>,
    ) -> *mut Item<K, V> {
        let Position(link, old) = position;
        let side = self.side();
        // SAFETY: as in `insert` and `find`.
        unsafe {
            (*new).next[side].store((*old).next[side].load(Ordering::Relaxed), Ordering::Relaxed);
            (*link).store(new, Ordering::Release);
        }
        old
    }

    /// Takes the item out. It keeps its links.
    pub(crate) fn remove(&self, position: Position<K, V>) -> *mut Item<K, V> {
        let Position(link, old) = position;
        // SAFETY: as in `find`. Release: the successor was perhaps published by another thread,
        // whose writes this one passes on.
        unsafe {
            (*link).store((*old).next[self.side()].load(Ordering::Relaxed), Ordering::Release);
        }
        self.count(self.items() - 1);
        old
    }

    fn side(&self) -> usize {
        // SAFETY: as in `chains`.
        unsafe { (*self.chains).tag & 1 }
    }
}

impl<K, V> Drop for Locked<'_, K, V> {
    fn drop(&mut self) {
        self.stripe.lock.unlock();
    }
}

/// All items of the chains as they were when it was made, in no order.
pub(crate) struct Walk<K, V> {
    chains: *const Chains<K, V>,
    index: usize,
    item: *mut Item<K, V>,
}

impl<K, V> Walk<K, V> {
    pub(crate) fn new(table: &Table<K, V>) -> Walk<K, V> {
        Walk { chains: table.chains(), index: 0, item: null_mut() }
    }

    /// # Safety
    /// Called in the section in which the walk was made.
    pub(crate) unsafe fn next(&mut self) -> Option<NonNull<Item<K, V>>> {
        // SAFETY: alive in the section: the chains, and every item in them.
        unsafe {
            if let Some(item) = self.item.as_ref() {
                self.item = item.next((*self.chains).tag);
            }
            while self.item.is_null() && self.index < (*self.chains).len {
                self.item = (*Array::slot(self.chains, self.index)).load(Ordering::Acquire);
                self.index += 1;
            }
        }
        NonNull::new(self.item)
    }
}
