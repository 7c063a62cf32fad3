// SPDX-License-Identifier: MIT OR Apache-2.0
//! This project's read sides: restartable lookups, protected references, plain sections, QSBR. All
//! in the default domain, whose engine is `Restart`, with its default cap.

use super::side::{Enter, InSections, Online, Plainly};
use super::{Peer, Reader, Writer, lookups, repeat, replace_and_await, wait_and_free};
use crate::error::Result;
use crate::table::{Node, Table, free, next_seed, value_of};
use reprieve::{Domain, Head, Lookup, Section};
use std::hint::black_box;
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

pub struct Restart;
pub struct ByEights;
pub struct Protect;
pub struct Plain;
pub struct Qsbr;

macro_rules! peer {
    ($($name:ident, $reader:expr, $writer:ident;)*) => { $(
        impl Peer for $name {
            fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
                Box::new($reader(table))
            }

            fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
                Box::new($writer(table))
            }
        }
    )* };
}
peer! {
    Restart, Restarter, Retirer;
    ByEights, Eights, Retirer;
    Protect, Protector, Watcher;
    Plain, |table| InSections(table, Plainly::new()), Retirer;
    Qsbr, |table| InSections(table, Online::new()), Retirer;
}

struct Nothing;
// SAFETY: does nothing.
unsafe impl Lookup for Nothing {
    type Output = ();
    #[inline(always)]
    unsafe fn run(&self, _: &Section) {}
}

/// The value of a key in a chain.
struct Find<'a>(&'a AtomicPtr<Node>, u64);
// SAFETY: inlined, loads through the section only, no panic; what it loads is freed through the
// domain.
unsafe impl Lookup for Find<'_> {
    type Output = u64;
    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        let mut node = section.load(self.0);
        // SAFETY: alive in this section.
        unsafe {
            while !node.is_null() {
                if section.read(&raw const (*node).key) == self.1 {
                    return section.read(&raw const (*node).value);
                }
                node = section.load(&(*node).next);
            }
        }
        0
    }
}

/// The values of several keys, in one section.
struct FindAll<'a>([Find<'a>; EIGHT]);
// SAFETY: as above; the loop is over arrays of one length.
unsafe impl Lookup for FindAll<'_> {
    type Output = [u64; EIGHT];
    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> [u64; EIGHT] {
        let mut values = [0; EIGHT];
        for (value, find) in values.iter_mut().zip(&self.0) {
            // SAFETY: the caller's promise.
            *value = unsafe { find.run(section) };
        }
        values
    }
}

/// The node of a key in a chain.
struct Locate<'a>(&'a AtomicPtr<Node>, u64);
// SAFETY: as above.
unsafe impl Lookup for Locate<'_> {
    type Output = *const Node;
    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Node {
        let mut node = section.load(self.0);
        // SAFETY: alive in this section.
        while !node.is_null() && unsafe { section.read(&raw const (*node).key) } != self.1 {
            // SAFETY: as above.
            node = section.load(unsafe { &(*node).next });
        }
        node
    }
}

/// The first node.
struct First<'a>(&'a AtomicPtr<Node>);
// SAFETY: as above.
unsafe impl Lookup for First<'_> {
    type Output = *const Node;
    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Node {
        section.load(self.0)
    }
}

/// The first node's value, 0 if it does not belong to its key.
struct FirstValue<'a>(&'a AtomicPtr<Node>);
// SAFETY: as above; a cell is never empty.
unsafe impl Lookup for FirstValue<'_> {
    type Output = u64;
    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        let node = section.load(self.0);
        // SAFETY: alive in this section.
        unsafe {
            let value = section.read(&raw const (*node).value);
            if value == value_of(section.read(&raw const (*node).key)) { value } else { 0 }
        }
    }
}

struct Restarter<'a>(&'a Table);

// SAFETY for all lookups below: nodes of a table are freed through the default domain, by
// `Retirer`.
impl Reader for Restarter<'_> {
    fn empty(&mut self, n: u64) {
        for _ in 0..n {
            // SAFETY: reaches nothing.
            unsafe { reprieve::lookup(&Nothing) };
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        lookups(self.0, seed, n, |head, key| unsafe { reprieve::lookup(&Find(head, key)) })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.0.head(0);
        // SAFETY: see above.
        repeat(n, || unsafe { reprieve::lookup(&FirstValue(head)) == 0 })
    }
}

/// As many lookups as fill the largest result, in a section each.
struct Eights<'a>(&'a Table);

const EIGHT: usize = 8;

impl Reader for Eights<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        let (table, mut s) = (self.0, *seed);
        let mut bad = 0;
        for _ in 0..n / EIGHT as u64 {
            let keys: [u64; EIGHT] = std::array::from_fn(|_| {
                s = next_seed(s);
                table.key(s)
            });
            let all = FindAll(keys.map(|key| Find(table.head(key), key)));
            // SAFETY: see above.
            let values = unsafe { reprieve::lookup(&all) };
            bad += keys.iter().zip(values).filter(|(key, value)| *value != value_of(**key)).count();
        }
        *seed = s;
        bad as u64
    }
}

struct Protector<'a>(&'a Table);

impl Reader for Protector<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        lookups(self.0, seed, n, |head, key| {
            // SAFETY: see above; nodes are retired with the address that is protected.
            let node = unsafe { reprieve::protect(&Locate(head, key)) };
            node.map_or(0, |node| node.value)
        })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.0.head(0);
        repeat(n, || {
            // SAFETY: as above.
            let node = black_box(unsafe { reprieve::protect(&First(head)) });
            node.is_none_or(|node| node.value != value_of(node.key))
        })
    }
}

pub struct Retirer<'a>(pub &'a Table);

unsafe extern "C" fn free_head(head: *mut Head) {
    let offset = std::mem::offset_of!(Node, reclaim);
    // SAFETY: the head lies in a node that was retired, and whose turn has come.
    unsafe { free(head.byte_sub(offset).cast()) };
}

/// Hands a node that was just unlinked from the table to the domain, which frees it.
pub fn retire(domain: &Domain, table: &Table, node: *mut Node) {
    const { assert!(size_of::<Head>() <= 32 && align_of::<Head>() <= 8) };
    let bytes = table.ledger().node_bytes() as usize;
    // SAFETY: unlinked; the head is in the node, which is ours; freeing takes no lock of ours.
    unsafe {
        let head: *mut Head = (*node).reclaim.get().cast();
        domain.retire(node.cast_const().cast(), head, free_head, bytes, true);
    }
}

impl Writer for Retirer<'_> {
    fn replace(&mut self, key: u64) {
        retire(Domain::global(), self.0, self.0.replace(key, false));
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        wait_and_free(self.0.replace(key, false), reprieve::synchronize_rcu)
    }
}

/// The writer beside protected references, which no grace period waits for: only retiring looks at
/// them.
pub struct Watcher<'a>(pub &'a Table);

impl Writer for Watcher<'_> {
    fn replace(&mut self, key: u64) {
        Retirer(self.0).replace(key);
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        replace_and_await(self.0, || self.replace(key), || ())
    }
}
