// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists in sections: this project's `List<T>` and its intrusive lists, and liburcu's rculist and
//! rcuhlist.
//!
//! The writer of an intrusive list replaces an item in place. An hlist has no such step (nor has
//! liburcu's): there an item is taken out and a new one put in front.

use super::side::Enter;
#[cfg(urcu)]
use super::urcu::{Functions, Thread};
use super::{Peer, Reader, Writer, repeat};
#[cfg(urcu)]
use crate::error::Result;
use crate::item::{self, Item, Items, Links};
use crate::table::{Table, value_of};
use reprieve::structures::List;
use reprieve::structures::list::{
    hlist_add_head_rcu, hlist_del_rcu, hlist_for_each_rcu, list_for_each_rcu, list_replace_rcu,
};
use reprieve::{Domain, Head, hlist_for_each_entry_rcu, list_entry, list_for_each_entry_rcu};
use std::marker::PhantomData;
use std::sync::OnceLock;
#[cfg(urcu)]
use std::time::Duration;

/// `List<T>`.
pub struct Owned<E>(OnceLock<List<(u64, u64)>>, PhantomData<fn() -> E>);

impl<E> Default for Owned<E> {
    fn default() -> Self {
        Owned(OnceLock::new(), PhantomData)
    }
}

impl<E> Owned<E> {
    fn list(&self, table: &Table) -> &List<(u64, u64)> {
        self.0.get_or_init(|| {
            let list = List::new();
            (0..table.keys()).for_each(|key| list.push_front((key, value_of(key))));
            list
        })
    }
}

impl<E: Enter> Peer for Owned<E> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(OwnedReader(self.list(table), table.sum(), E::new()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(OwnedWriter(self.list(table)))
    }
}

struct OwnedReader<'a, E>(&'a List<(u64, u64)>, u64, E);

impl<E: Enter> Reader for OwnedReader<'_, E> {
    fn walks(&mut self, n: u64) -> u64 {
        let bad = repeat(n, || {
            let guard = self.2.enter();
            self.0.iter_in(&guard).fold(0u64, |sum, (_, value)| sum.wrapping_add(*value)) != self.1
        });
        self.2.after();
        bad
    }
}

struct OwnedWriter<'a>(&'a List<(u64, u64)>);

impl Writer for OwnedWriter<'_> {
    fn replace(&mut self, key: u64) {
        self.0.replace_first(|(k, _)| *k == key, |&(key, _)| (key, value_of(key)));
    }
}

/// Items on one kind of links, made for the first reader or writer.
struct Shared(Links, OnceLock<Box<Items>>);

impl Shared {
    fn items(&self, table: &Table) -> &Items {
        self.1.get_or_init(|| Items::new(self.0, table))
    }

    /// All items, in order.
    fn all(&self) -> Vec<*mut Item> {
        let Some(items) = self.1.get() else {
            return vec![];
        };
        let guard = reprieve::read_lock();
        // SAFETY: called by the only writer, or when there is nobody else: nothing is removed.
        unsafe {
            match self.0 {
                Links::List => list_for_each_rcu(&items.list, &guard)
                    .map(|links| list_entry!(links, Item, links))
                    .collect(),
                Links::Hlist => hlist_for_each_rcu(&items.hlist, &guard)
                    .map(|links| list_entry!(links, Item, chain))
                    .collect(),
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for item in self.all() {
            // SAFETY: from `item::new`; nobody else sees the list any more.
            drop(unsafe { Box::from_raw(item) });
        }
    }
}

/// This project's intrusive lists.
pub struct Intrusive<E>(Shared, PhantomData<fn() -> E>);

impl<E> Intrusive<E> {
    pub fn new(links: Links) -> Self {
        Intrusive(Shared(links, OnceLock::new()), PhantomData)
    }
}

impl<E: Enter> Peer for Intrusive<E> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Walker(self.0.0, self.0.items(table), table.sum(), E::new()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        let items = self.0.items(table);
        Box::new(Replacer { links: self.0.0, items, current: current(&self.0, table), table })
    }
}

struct Walker<'a, E>(Links, &'a Items, u64, E);

impl<E: Enter> Reader for Walker<'_, E> {
    fn walks(&mut self, n: u64) -> u64 {
        let Walker(links, items, sum, side) = self;
        // SAFETY: items are retired through the default domain, and not written to.
        let bad = match links {
            Links::List => repeat(n, || {
                let guard = side.enter();
                let mut seen = 0u64;
                // SAFETY: see above.
                let walk = unsafe { list_for_each_entry_rcu!(&items.list, Item, links, &guard) };
                for item in walk {
                    seen = seen.wrapping_add(item.value);
                }
                seen != *sum
            }),
            // An item that is taken out and put in front may be missed; none is seen twice.
            Links::Hlist => repeat(n, || {
                let guard = side.enter();
                let mut seen = 0u64;
                // SAFETY: see above.
                let walk = unsafe { hlist_for_each_entry_rcu!(&items.hlist, Item, chain, &guard) };
                for item in walk {
                    seen = seen.wrapping_add(item.value);
                }
                seen > *sum
            }),
        };
        side.after();
        bad
    }
}

/// The items by their keys, for the writer.
fn current(shared: &Shared, table: &Table) -> Vec<*mut Item> {
    let mut all = shared.all();
    // SAFETY: only the writer, who asks, unlinks them.
    all.sort_by_key(|&item| unsafe { (*item).key });
    debug_assert_eq!(all.len() as u64, table.keys());
    all
}

struct Replacer<'a> {
    links: Links,
    items: &'a Items,
    current: Vec<*mut Item>,
    table: &'a Table,
}

unsafe extern "C" fn free_head(head: *mut Head) {
    let offset = std::mem::offset_of!(Item, reclaim);
    // SAFETY: the head lies in an item that was retired, and whose turn has come.
    unsafe { item::free(head.byte_sub(offset).cast()) };
}

impl Writer for Replacer<'_> {
    fn replace(&mut self, key: u64) {
        const { assert!(size_of::<Head>() <= 32 && align_of::<Head>() <= 8) };
        let new = item::new(key, self.table.ledger());
        let old = std::mem::replace(&mut self.current[key as usize], new);
        // SAFETY: one writer; the old item is in the list, the new one fresh; the head is in the
        // item, which is ours once it is unlinked.
        unsafe {
            match self.links {
                Links::List => list_replace_rcu(&raw mut (*old).links, &raw mut (*new).links),
                Links::Hlist => {
                    hlist_del_rcu(&raw mut (*old).chain);
                    hlist_add_head_rcu(&raw mut (*new).chain, &self.items.hlist);
                }
            }
            self.table.ledger().unlinked();
            let head: *mut Head = (*old).reclaim.get().cast();
            let address = old.cast_const().cast();
            Domain::global().retire(address, head, free_head, size_of::<Item>(), true);
        }
    }
}

/// liburcu's lists, of the same items.
#[cfg(urcu)]
pub struct Urcu(Shared, &'static Functions);

#[cfg(urcu)]
impl Urcu {
    pub fn new(links: Links, functions: &'static Functions) -> Urcu {
        Urcu(Shared(links, OnceLock::new()), functions)
    }
}

#[cfg(urcu)]
impl Peer for Urcu {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        let thread = Thread::register(self.1, false);
        Box::new(UrcuWalker(self.0.0, self.0.items(table), table.sum(), thread))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        let items = self.0.items(table);
        let current = current(&self.0, table);
        let thread = Thread::register(self.1, true);
        Box::new(UrcuReplacer { links: self.0.0, items, current, table, thread })
    }
}

#[cfg(urcu)]
struct UrcuWalker<'a>(Links, &'a Items, u64, Thread);

#[cfg(urcu)]
impl Reader for UrcuWalker<'_> {
    fn walks(&mut self, n: u64) -> u64 {
        let UrcuWalker(links, items, sum, thread) = self;
        let functions = thread.0;
        // SAFETY: this thread is registered; the items have the layout that C expects, and are
        // freed after grace periods of this flavor.
        unsafe {
            match links {
                Links::List => (functions.list_walks)(&items.list, *sum, n),
                Links::Hlist => (functions.hlist_walks)(&items.hlist, *sum, n),
            }
        }
    }
}

#[cfg(urcu)]
struct UrcuReplacer<'a> {
    links: Links,
    items: &'a Items,
    current: Vec<*mut Item>,
    table: &'a Table,
    thread: Thread,
}

#[cfg(urcu)]
impl Writer for UrcuReplacer<'_> {
    fn replace(&mut self, key: u64) {
        let new = item::new(key, self.table.ledger());
        let old = std::mem::replace(&mut self.current[key as usize], new);
        self.table.ledger().unlinked();
        let functions = self.thread.0;
        // SAFETY: one writer, which is registered; the old item is in the list, the new one fresh.
        unsafe {
            match self.links {
                Links::List => (functions.list_replace)(old, new),
                Links::Hlist => (functions.hlist_replace)(&self.items.hlist, old, new),
            }
        }
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        self.drain();
        Ok(Duration::ZERO)
    }

    fn drain(&mut self) {
        // SAFETY: outside any section.
        unsafe { (self.thread.0.barrier)() };
    }
}
