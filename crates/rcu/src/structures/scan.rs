// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans of structures whose places are numbers: array indices, or hashes in the order in which
//! tables of every size keep them.
//!
//! Each part of such a scan finds its place again by the number, from the structure's entry. So it
//! needs no checkpoint: the only slot is that of the node handed out. `thread/checkpoints.rs` has
//! the scans that start at a node.

use super::handle::{self, Handle};
use crate::read::protected::Protected;
use crate::read::restart::Lookup;
use crate::read::restart::traversal::{Pace, Part};
use std::ptr::NonNull;

pub(crate) struct Scan {
    /// Where the next part starts. `None`: the scan is over.
    pub(crate) place: Option<u64>,
    pace: Pace,
}

impl Scan {
    pub(crate) fn new() -> Scan {
        Scan { place: Some(0), pace: Pace::new() }
    }

    /// The next node. A part starts at a place, and returns a node, if it has found one, and the
    /// place to go on from: 0 at the end.
    ///
    /// # Safety
    /// As for [`Domain::protect`](crate::Domain::protect), for each node that a part returns.
    pub(crate) unsafe fn next<'h, T, L: Lookup<Output = Part<T>>>(
        &mut self,
        domain: &'h impl Handle,
        part: impl Fn(u64, usize) -> L,
    ) -> Option<Protected<'h, T>> {
        while let Some(place) = self.place {
            let slot = handle::slots(domain).free();
            // SAFETY: nobody else fills the slot before this returns; the caller's promise.
            let found = unsafe {
                handle::protect_part(domain, &self.pace, slot, |steps| part(place, steps))
            };
            self.place = (found.word != 0).then_some(found.word as u64);
            if let Some(node) = NonNull::new(found.node.cast_mut()) {
                // SAFETY: the part has filled the slot with the node.
                return Some(unsafe { Protected::new(node, slot) });
            }
        }
        None
    }
}
