// SPDX-License-Identifier: MIT OR Apache-2.0
//! This project's traversals in parts, in a domain whose soft cap is below HP-BRCU's garbage.

use super::reprieve::retire;
use super::{Peer, Reader, Writer, lookups, replace_and_await};
use crate::error::Result;
use crate::table::{Node, Table};
use reprieve::{Cap, Domain, Part, Section, Traversal};
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// Nodes that wait before the writer makes a grace period itself.
pub const CAP: u64 = 192;

pub struct Traverse(Domain);

impl Default for Traverse {
    fn default() -> Traverse {
        let cap = Cap { bytes: u64::MAX, callbacks: CAP };
        let domain = Domain::builder().soft_cap(cap).build();
        Traverse(domain.expect("a process may have a thousand domains"))
    }
}

impl Peer for Traverse {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(User(&self.0, table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(User(&self.0, table))
    }
}

struct User<'a>(&'a Domain, &'a Table);

/// The node of a key in a chain.
struct Find<'a>(&'a AtomicPtr<Node>, u64);

// SAFETY: inlined, loads through the section only, no panic. The writer sets the lowest bit of a
// node's link before it unlinks the node.
unsafe impl Traversal for Find<'_> {
    type Node = Node;

    #[inline(always)]
    unsafe fn part(&self, section: &Section, from: *const Node, steps: usize) -> Part<Node> {
        // SAFETY: alive in this section, or in a slot.
        unsafe {
            let mut node = if from.is_null() {
                section.load(self.0) as usize
            } else {
                let next = section.load(&(*from).next) as usize;
                if next & 1 != 0 {
                    return Part::lost();
                }
                next
            };
            let mut left = steps;
            while node != 0 {
                let here = node as *const Node;
                if section.read(&raw const (*here).key) == self.1 {
                    return Part::found(here);
                }
                left -= 1;
                if left == 0 {
                    return Part::reached(here);
                }
                node = section.load(&(*here).next) as usize & !1;
            }
        }
        Part::end()
    }
}

impl Reader for User<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        lookups(self.1, seed, n, |head, key| {
            // SAFETY: nodes are retired through this domain, with the address that is protected.
            unsafe { self.0.traverse(&Find(head, key)) }.map_or(0, |node| node.value)
        })
    }
}

impl Writer for User<'_> {
    fn replace(&mut self, key: u64) {
        retire(self.0, self.1, self.1.replace(key, true));
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        replace_and_await(self.1, || self.replace(key), || ())
    }

    fn drain(&mut self) {
        // Not called by a callback: it cannot fail.
        let _ = self.0.barrier();
    }
}
