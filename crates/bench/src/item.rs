// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of intrusive lists, in one layout for this project's lists and liburcu's (`c/lists.h`):
//! both kinds of links, a key, its value.
//!
//! The table's ledger counts them as it counts the table's own nodes.

use crate::table::{Ledger, POISON, Table, value_of};
use reprieve::structures::list::{
    HlistHead, HlistNode, ListHead, hlist_add_head_rcu, init_list_head, list_add_rcu_tail,
};
use std::cell::UnsafeCell;

/// The links along which a list is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// A circular, doubly linked list: `list_head`.
    List,
    /// A pointer to the first entry: `hlist`.
    Hlist,
}

/// An entry. `c/lists.h` has the same layout.
#[repr(C)]
pub struct Item {
    pub links: ListHead,
    pub chain: HlistNode,
    pub key: u64,
    pub value: u64,
    ledger: *const Ledger,
    /// Room for what the subject needs to free the entry later (its callback head).
    pub reclaim: UnsafeCell<[usize; 4]>,
}

// SAFETY: `reclaim` belongs to the writer until the item is retired, and to the reclaimer from then
// on; the rest is read only.
unsafe impl Sync for Item {}

/// A list of items. It has the heads of both kinds of links and uses one. Boxed, because heads must
/// not move.
pub struct Items {
    pub list: ListHead,
    pub hlist: HlistHead,
}

impl Items {
    /// A list of the table's keys.
    pub fn new(links: Links, table: &Table) -> Box<Items> {
        let mut items = Box::new(Items { list: ListHead::new(), hlist: HlistHead::new() });
        let list: *mut ListHead = &mut items.list;
        // SAFETY: nobody else sees them yet; the items are fresh, and the heads boxed.
        unsafe {
            init_list_head(list);
            // The first of an hlist is the one put in last.
            for key in (0..table.keys()).rev() {
                let item = new(key, table.ledger());
                match links {
                    Links::List => list_add_rcu_tail(&raw mut (*item).links, list),
                    Links::Hlist => {
                        hlist_add_head_rcu(&raw mut (*item).chain, &raw const items.hlist)
                    }
                }
            }
        }
        items
    }
}

/// A new item, in no list and owned by the caller.
pub fn new(key: u64, ledger: &Ledger) -> *mut Item {
    Box::into_raw(Box::new(Item {
        links: ListHead::new(),
        chain: HlistNode::new(),
        key,
        value: value_of(key),
        ledger,
        reclaim: UnsafeCell::new([0; 4]),
    }))
}

/// Poisons an item, gives its memory back, counts it.
///
/// # Safety
/// The item is from [`new`], no thread can reach it any more, and the ledger counts it as unlinked.
#[unsafe(export_name = "reprieve_bench_free_item")]
pub unsafe extern "C" fn free(item: *mut Item) {
    // SAFETY: the caller's promise. Volatile, so that the poison is really written.
    unsafe {
        let ledger = (*item).ledger;
        (&raw mut (*item).key).write_volatile(POISON);
        (&raw mut (*item).value).write_volatile(POISON);
        drop(Box::from_raw(item));
        (*ledger).released();
    }
}
