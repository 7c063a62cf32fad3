// SPDX-License-Identifier: MIT OR Apache-2.0
//! haphazard (hazard pointers), in its global domain, with hazard pointers that each thread keeps.
//!
//! A chain is walked hand over hand: one pointer protects the node we stand on, the other the next.
//! That the next is still linked proves nothing if the node we stand on is not, so the writer marks
//! a node's own link before it unlinks the node (Michael, 2002), and a reader that meets a mark
//! begins again.

use super::{Peer, Reader, Writer, lookups, repeat, replace_and_await};
use crate::error::Result;
use crate::table::{Node, Table, free, value_of};
use haphazard::{Domain, HazardPointer, raw::Pointer};
use std::ops::Deref;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

pub struct Haphazard;

impl Peer for Haphazard {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Hands(table, [HazardPointer::new(), HazardPointer::new()]))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retiring(table))
    }
}

struct Hands<'a>(&'a Table, [HazardPointer<'static>; 2]);

/// Walks a chain until `visit` returns true, or to the end. False if a mark was met: begin again.
#[inline(always)]
fn hand_over_hand(
    hands: &mut [HazardPointer<'static>; 2],
    head: &AtomicPtr<Node>,
    mut visit: impl FnMut(&Node) -> bool,
) -> bool {
    let mut link = head;
    let mut hand = 0;
    let whole = loop {
        let mut node = link.load(Acquire);
        let protected = loop {
            if node.addr() & 1 != 0 {
                break Err(());
            }
            match hands[hand].try_protect_ptr(node, link) {
                Ok(protected) => break Ok(protected.map(|(node, _)| node)),
                Err(now) => node = now,
            }
        };
        match protected {
            // SAFETY: protected, and seen linked by an unmarked link afterwards.
            Ok(Some(node)) => unsafe {
                if visit(node.as_ref()) {
                    break true;
                }
                link = &(*node.as_ptr()).next;
            },
            Ok(None) => break true,
            Err(()) => break false,
        }
        hand ^= 1;
    };
    hands.iter_mut().for_each(HazardPointer::reset_protection);
    whole
}

impl Reader for Hands<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        let Hands(table, hands) = self;
        lookups(table, seed, n, |head, key| {
            let mut value = 0;
            while !hand_over_hand(hands, head, |node| {
                let found = node.key == key;
                if found {
                    value = node.value;
                }
                found
            }) {}
            value
        })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let (head, hand) = (self.0.head(0), &mut self.1[0]);
        repeat(n, || {
            // SAFETY: nodes are freed through the same domain.
            let wrong = unsafe { hand.protect(head) }
                .is_none_or(|node: &Node| node.value != value_of(node.key));
            hand.reset_protection();
            wrong
        })
    }
}

/// Frees a node when it is dropped.
struct Owned(*mut Node);

impl Deref for Owned {
    type Target = Node;

    fn deref(&self) -> &Node {
        // SAFETY: owned.
        unsafe { &*self.0 }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: owned, and dropped by the domain alone.
        unsafe { free(self.0) };
    }
}

// SAFETY: the pointer is passed on as it is.
unsafe impl Pointer<Node> for Owned {
    fn into_raw(self) -> *mut Node {
        std::mem::ManuallyDrop::new(self).0
    }

    unsafe fn from_raw(node: *mut Node) -> Owned {
        Owned(node)
    }
}

struct Retiring<'a>(&'a Table);

impl Writer for Retiring<'_> {
    fn replace(&mut self, key: u64) {
        let node = self.0.replace(key, true);
        // SAFETY: unlinked.
        unsafe { Domain::global().retire_ptr::<Node, Owned>(node) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let nudge = || _ = Domain::global().eager_reclaim();
        replace_and_await(self.0, || self.replace(key), nudge)
    }

    fn drain(&mut self) {
        Domain::global().eager_reclaim();
    }
}
