// SPDX-License-Identifier: MIT OR Apache-2.0
//! The smallest structure there is: one pointer to one node.

use reprieve::{Domain, Lookup, Section};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Longer than any test: what waits for its end hangs.
#[allow(dead_code, reason = "not every test needs it")]
pub const FOR_EVER: std::time::Duration = std::time::Duration::from_secs(1 << 32);

pub struct Node {
    pub value: u64,
}

pub struct Cell(AtomicPtr<Node>);

impl Cell {
    pub fn new(value: u64) -> Cell {
        Cell(AtomicPtr::new(Box::into_raw(Box::new(Node { value }))))
    }

    /// Publishes a new node and retires the old one. All uses of a cell are through one domain.
    pub unsafe fn replace(&self, domain: &Domain, value: u64) {
        let old = self.0.swap(Box::into_raw(Box::new(Node { value })), AcqRel);
        // SAFETY: unlinked just now, allocated as a box.
        unsafe { domain.retire_box(Box::from_raw(old)) };
    }

    /// The address of the node that is there now.
    #[allow(dead_code, reason = "not every test needs it")]
    pub fn address(&self) -> usize {
        self.0.load(Acquire).addr()
    }

    pub fn value(&self) -> Value<'_> {
        Value(self)
    }

    pub fn node(&self) -> Find<'_> {
        Find(self)
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // SAFETY: nobody reads any more.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}

pub struct Value<'a>(&'a Cell);

// SAFETY: two loads through the section, inlined.
unsafe impl Lookup for Value<'_> {
    type Output = u64;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> u64 {
        let node = section.load(&self.0.0);
        // SAFETY: alive in this section.
        unsafe { section.read(&raw const (*node).value) }
    }
}

pub struct Find<'a>(&'a Cell);

// SAFETY: one load through the section, inlined.
unsafe impl Lookup for Find<'_> {
    type Output = *const Node;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Node {
        section.load(&self.0.0) as *const Node
    }
}
