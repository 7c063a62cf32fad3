// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that every subject reads and updates: chains of nodes, in one layout for Rust and C.
//!
//! A hash table is 1024 chains of 4 keys; a cell is one chain of one; a list is one chain of many.
//! There is one writer, so updates need no lock: it replaces a node by a copy, as read-copy update
//! does, and hands the old node to the subject. Keys never go missing, and each node's value
//! follows from its key, so a reader can tell whatever it should not have seen: a freed node is
//! poisoned before its memory goes back to the allocator.
//!
//! Garbage is counted here, not by the subjects: what has been unlinked and not freed.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Keys of the hash table.
pub const KEYS: u64 = 4096;
/// Its chains.
pub const CHAINS: u64 = 1024;
/// The value that freed nodes hold.
pub const POISON: u64 = 0xdead_dead_dead_dead;

/// An entry. `c/node.h` has the same layout. Memory beyond it is payload.
#[repr(C)]
pub struct Node {
    pub next: AtomicPtr<Node>,
    pub key: u64,
    pub value: u64,
    /// A `Ledger`, of which C knows nothing.
    ledger: *const c_void,
    /// For whatever the subject needs to free the node later.
    pub reclaim: UnsafeCell<[usize; 4]>,
}

// SAFETY: `reclaim` belongs to the writer until the node is retired, and to the reclaimer from then
// on; the rest is read only.
unsafe impl Sync for Node {}
// SAFETY: as above; the ledger outlives all nodes.
unsafe impl Send for Node {}

/// The value that belongs to a key. Never 0: that is "not found".
#[inline(always)]
pub fn value_of(key: u64) -> u64 {
    key.wrapping_mul(3).wrapping_add(1)
}

/// The generator of keys, the same in C.
#[inline(always)]
pub fn next_seed(seed: u64) -> u64 {
    seed.wrapping_mul(6364136223846793005).wrapping_add(1)
}

/// Counts of unlinked and of freed nodes.
pub struct Ledger {
    layout: Layout,
    retired: AtomicU64,
    /// On its own line: reclaimers write it while the writer counts.
    freed: Freed,
}

#[repr(align(128))]
struct Freed {
    count: AtomicU64,
    /// When the last node was freed, if somebody wants to know.
    timed: AtomicBool,
    at: AtomicU64,
}

impl Ledger {
    /// Nodes waiting to be freed.
    pub fn garbage(&self) -> u64 {
        self.retired.load(Ordering::Relaxed).saturating_sub(self.freed())
    }

    /// Nodes freed.
    pub fn freed(&self) -> u64 {
        self.freed.count.load(Ordering::Acquire)
    }

    /// When the last node was freed (`clock::now`), once `stamp_frees` was called.
    pub fn last_free(&self) -> u64 {
        self.freed.at.load(Ordering::Acquire)
    }

    /// Counts a node as unlinked. One writer.
    pub fn unlinked(&self) {
        self.retired.store(self.retired.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a node as freed, and stamps it if that is wanted. The ledger may be gone when the
    /// last has been counted.
    pub fn released(&self) {
        if self.freed.timed.load(Ordering::Relaxed) {
            self.freed.at.store(crate::clock::now(), Ordering::Release);
        }
        self.freed.count.fetch_add(1, Ordering::Release);
    }

    /// Reads the clock at each free from now on.
    pub fn stamp_frees(&self) {
        self.freed.timed.store(true, Ordering::Relaxed);
    }

    /// Bytes of one node.
    pub fn node_bytes(&self) -> u64 {
        self.layout.size() as u64
    }
}

/// The part that C reads: `struct chains`.
#[repr(C)]
pub struct Chains {
    heads: *const AtomicPtr<Node>,
    head_mask: u64,
    key_mask: u64,
}

/// The shared data of one sample.
pub struct Table {
    heads: Box<[AtomicPtr<Node>]>,
    chains: Chains,
    ledger: Box<Ledger>,
}

// SAFETY: the pointer in `chains` leads to `heads`, which are atomics.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

impl Table {
    /// A hash table whose nodes have `bytes` bytes each.
    pub fn hash(bytes: usize) -> Table {
        Table::new(CHAINS, KEYS, bytes)
    }

    /// A single pointer.
    pub fn cell() -> Table {
        Table::new(1, 1, size_of::<Node>())
    }

    /// A chain of `length` (a power of two) nodes.
    pub fn list(length: u64) -> Table {
        Table::new(1, length, size_of::<Node>())
    }

    fn new(chains: u64, keys: u64, bytes: usize) -> Table {
        assert!(chains.is_power_of_two() && keys.is_power_of_two());
        let bytes = bytes.max(size_of::<Node>());
        let layout = Layout::from_size_align(bytes, 16).expect("a node's size is small");
        let heads: Box<[_]> = (0..chains).map(|_| AtomicPtr::new(null_mut())).collect();
        let ledger = Box::new(Ledger {
            layout,
            retired: AtomicU64::new(0),
            freed: Freed {
                count: AtomicU64::new(0),
                timed: AtomicBool::new(false),
                at: AtomicU64::new(0),
            },
        });
        let chains = Chains { heads: heads.as_ptr(), head_mask: chains - 1, key_mask: keys - 1 };
        let table = Table { heads, chains, ledger };
        for key in 0..keys {
            let head = table.head(key);
            let node = table.node(key, head.load(Ordering::Relaxed));
            head.store(node, Ordering::Release);
        }
        table
    }

    /// Where C finds it.
    pub fn chains(&self) -> *const Chains {
        &raw const self.chains
    }

    /// The accounts.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Keys in it: 0 to `keys() - 1`.
    pub fn keys(&self) -> u64 {
        self.chains.key_mask + 1
    }

    /// The key that a seed stands for.
    #[inline(always)]
    pub fn key(&self, seed: u64) -> u64 {
        (seed >> 33) & self.chains.key_mask
    }

    /// The start of a key's chain.
    #[inline(always)]
    pub fn head(&self, key: u64) -> &AtomicPtr<Node> {
        // SAFETY: masked to the number of heads; C has no bounds check here either.
        unsafe { &*self.chains.heads.add((key & self.chains.head_mask) as usize) }
    }

    fn node(&self, key: u64, next: *mut Node) -> *mut Node {
        // SAFETY: the layout is not empty; the memory is fresh and large enough. The payload is
        // written, too, as a user of the memory would.
        unsafe {
            let node = alloc(self.ledger.layout).cast::<Node>();
            if node.is_null() {
                handle_alloc_error(self.ledger.layout);
            }
            node.add(1)
                .cast::<u8>()
                .write_bytes(0x5a, self.ledger.layout.size() - size_of::<Node>());
            node.write(Node {
                next: AtomicPtr::new(next),
                key,
                value: value_of(key),
                ledger: (&raw const *self.ledger).cast(),
                reclaim: UnsafeCell::new([0; 4]),
            });
            node
        }
    }

    /// The link that leads to a key's node. For the writer.
    fn link(&self, key: u64) -> &AtomicPtr<Node> {
        let mut link = self.head(key);
        loop {
            // SAFETY: keys do not go missing, and only the caller unlinks nodes.
            let node = unsafe { &*link.load(Ordering::Relaxed) };
            if node.key == key {
                return link;
            }
            link = &node.next;
        }
    }

    /// Replaces a key's node by a copy and returns the old one, which the caller has to have freed.
    /// One writer at a time.
    ///
    /// `mark`: sets the lowest bit of the old node's link first, for readers that must know whether
    /// the node they stand on is still linked.
    pub fn replace(&self, key: u64, mark: bool) -> *mut Node {
        let copy = self.copy(key);
        if mark {
            // SAFETY: linked, and the caller is the only one who unlinks.
            let next = unsafe { &(*copy.old).next };
            next.store(next.load(Ordering::Relaxed).map_addr(|a| a | 1), Ordering::Release);
        }
        copy.publish()
    }

    /// A copy of a key's node, which readers do not see yet. One writer at a time.
    pub fn copy(&self, key: u64) -> Replacement<'_> {
        let link = self.link(key);
        let old = link.load(Ordering::Relaxed);
        // SAFETY: linked, and the caller is the only one who unlinks.
        let after = unsafe { (*old).next.load(Ordering::Relaxed) };
        Replacement { table: self, link, old, new: self.node(key, after) }
    }
}

/// A copy of a node, on its way to take the node's place.
#[must_use]
pub struct Replacement<'a> {
    table: &'a Table,
    link: &'a AtomicPtr<Node>,
    old: *mut Node,
    new: *mut Node,
}

impl Replacement<'_> {
    /// Puts the copy in the node's place, and returns the node, which the caller has to have freed.
    pub fn publish(self) -> *mut Node {
        self.link.store(self.new, Ordering::Release);
        self.table.ledger.unlinked();
        self.old
    }
}

/// All readers are gone and all garbage has been freed: `readers.rs` and the benchmarks see to
/// that.
impl Drop for Table {
    fn drop(&mut self) {
        for head in &self.heads {
            let mut next = head.load(Ordering::Relaxed);
            while !next.is_null() {
                let node = next;
                // SAFETY: nobody else looks any more.
                unsafe {
                    next = (*node).next.load(Ordering::Relaxed);
                    dealloc(node.cast(), self.ledger.layout);
                }
            }
        }
    }
}

/// Poisons a node, gives its memory back, counts it. In this order: at the last count the ledger
/// may go.
///
/// # Safety
/// Nobody can see the node any more.
#[unsafe(export_name = "reprieve_bench_free")]
pub unsafe extern "C" fn free(node: *mut Node) {
    // SAFETY: the caller's promise; nodes come from `Table::node`. Volatile, so that the poison is
    // really written. The ledger is there as long as a node is not counted.
    unsafe {
        let ledger = &*(*node).ledger.cast::<Ledger>();
        let layout = ledger.layout;
        (&raw mut (*node).key).write_volatile(POISON);
        (&raw mut (*node).value).write_volatile(POISON);
        dealloc(node.cast(), layout);
        ledger.released();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_nodes_are_counted_and_keys_stay() {
        let table = Table::hash(1024);
        for key in [0, 1023, 1024, 4095] {
            let old = table.replace(key, false);
            assert_eq!(table.ledger().garbage(), 1);
            // SAFETY: there are no readers.
            unsafe { free(old) };
            let new = table.link(key).load(Ordering::Relaxed);
            // SAFETY: linked.
            assert_eq!(unsafe { (*new).value }, value_of(key));
        }
        assert_eq!((table.ledger().garbage(), table.ledger().freed()), (0, 4));
    }

    #[test]
    fn a_replaced_node_may_be_marked() {
        let table = Table::list(64);
        let old = table.replace(5, true);
        // SAFETY: there are no readers.
        unsafe {
            assert_eq!((*old).next.load(Ordering::Relaxed).addr() & 1, 1);
            free(old);
        }
    }
}
