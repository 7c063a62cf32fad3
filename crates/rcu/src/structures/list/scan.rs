// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans of a [`List`](super::List) that hold no grace period up.
//!
//! A scan goes on from the item that it handed out last, by checkpoints
//! (`thread/checkpoints.rs`). The mark of an unlinked item is its `prev`: null. Writers set it when
//! they take the item out, under the list's lock, hence before they take out, or retire, any item
//! behind.
//!
//! # After both checkpoints were lost
//! Items have an order that they keep: `position` grows from each item to the next, and a
//! replacement takes over its predecessor's. So a scan that has to start at the head again passes
//! over the items up to the position that it handed out last, and
//!
//! > **Invariant.** An item that is in the list all the while is handed out once.

use super::links::ListHead;
use super::owned::{Item, List};
use crate::read::protected::Protected;
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::read::restart::traversal::{FOUND, Handed, LOST, Pace, Part, REACHED, blind};
use crate::structures::handle::{self, Handle};
use crate::thread::checkpoints::Checkpoints;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Values, protected. See [`List::iter`].
pub struct Iter<'l, T, D> {
    list: &'l List<T, D>,
    checkpoints: Checkpoints<'static>,
    pace: Pace,
    /// The position that was handed out last.
    last: i64,
}

impl<'l, T, D: Handle> Iter<'l, T, D> {
    pub(super) fn new(list: &'l List<T, D>) -> Iter<'l, T, D> {
        let checkpoints = Checkpoints::reserve(handle::slots(&list.domain));
        Iter { list, checkpoints, pace: Pace::new(), last: i64::MIN }
    }
}

impl<'l, T: 'static, D: Handle> Iterator for Iter<'l, T, D> {
    type Item = Protected<'l, T>;

    fn next(&mut self) -> Option<Protected<'l, T>> {
        loop {
            let (from, slot) = self.checkpoints.next();
            let handed = handle::slots(&self.list.domain).free();
            // SAFETY: the slots are ours; items are retired through this domain, with the address
            // that a part returns.
            let part = unsafe {
                handle::protect_part(&self.list.domain, &self.pace, slot, |steps| Next {
                    head: self.list.head,
                    from: from as *const Item<T>,
                    last: self.last,
                    beyond: (handed.as_ptr() as usize).wrapping_sub(slot.as_ptr() as usize),
                    steps,
                })
            };
            let part = part.part();
            if part.word != FOUND {
                // An aborted part may have filled it.
                handed.store(0, Ordering::Release);
            }
            match part.word {
                FOUND => {
                    self.checkpoints.reached(part.node as usize);
                    // SAFETY: it is in both slots. The address of an item is that of its value.
                    unsafe {
                        self.last = (*part.node).position;
                        let value = NonNull::new_unchecked(part.node.cast_mut()).cast();
                        return Some(Protected::new(value, handed));
                    }
                }
                REACHED => self.checkpoints.reached(part.node as usize),
                LOST => self.checkpoints.lost(),
                _ => return None,
            }
        }
    }
}

/// Finds the first item behind `from`, or in the list if that is null, whose position is beyond
/// `last`. Fills the slot that is so far `beyond` with it as well.
struct Next<T> {
    head: *const ListHead,
    from: *const Item<T>,
    last: i64,
    beyond: usize,
    steps: usize,
}

// SAFETY: loads through the section, and arithmetic that does not overflow, in line.
unsafe impl<T> Lookup for Next<T> {
    type Output = Handed<Item<T>>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Handed<Item<T>> {
        let links_in = offset_of!(Item<T>, links);
        // SAFETY: the head is alive, as are the items, in the section or in a slot.
        unsafe {
            let head = self.head;
            let mut links = head;
            if self.from as usize != 0 {
                links = &raw const (*self.from).links;
                let prev = section.read(&raw const (*links).prev as *const *mut ListHead);
                if prev as usize == 0 && !blind() {
                    return Handed::other(Part::lost());
                }
            }
            let mut left = self.steps;
            loop {
                links = section.read(&raw const (*links).next as *const *mut _) as *const ListHead;
                if links == head {
                    return Handed::other(Part::end());
                }
                let item = (links as *const u8).wrapping_sub(links_in) as *const Item<T>;
                if section.read(&raw const (*item).position) > self.last {
                    return Handed::found(item, self.beyond);
                }
                left -= 1;
                if left == 0 {
                    return Handed::other(Part::reached(item));
                }
            }
        }
    }
}
