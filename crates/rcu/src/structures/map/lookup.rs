// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map's restartable lookups: [`Table::find`](super::table::Table::find) in loads that may run
//! inside the section.
//!
//! A key's own `==` may not: it is the user's code. Inside only the hashes are compared, all 64
//! bits; the caller compares the keys, outside, of the first item with that hash, and searches in a
//! plain section if they differ (once in 2^64).

use super::table::{Chains, Item};
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::read::restart::traversal::Part;
use crate::structures::copy::Words;
use std::ptr::null;
use std::sync::atomic::AtomicPtr;

/// # Safety
/// The links are alive in the section, and more than `index`. For use inside: no calls.
#[inline(always)]
unsafe fn follow<K, V>(
    section: &Section,
    links: *const *mut Item<K, V>,
    index: usize,
) -> *mut Item<K, V> {
    // SAFETY: the caller's promise.
    unsafe { section.read(links.wrapping_add(index)) }
}

/// Finds the first item of that hash, and protects it.
pub(super) struct Find<'a, K, V> {
    pub(super) chains: &'a AtomicPtr<Chains<K, V>>,
    pub(super) hash: u64,
}

impl<K, V> Find<'_, K, V> {
    /// Null if there is none.
    ///
    /// # Safety
    /// In a section of the map's domain.
    #[inline(always)]
    unsafe fn walk(&self, section: &Section) -> *mut Item<K, V> {
        let chains = section.load(self.chains);
        // SAFETY: the chains are alive in the section, the index is in range, and the items found
        // are alive, too.
        unsafe {
            let mask = section.read(&raw const (*chains).len) - 1;
            let side = section.read(&raw const (*chains).tag);
            let slots = &raw const (*chains).slots as *const *mut Item<K, V>;
            let mut item = follow(section, slots, self.hash as usize & mask);
            while item as usize != 0 {
                if section.read(&raw const (*item).hash) == self.hash {
                    break;
                }
                item = follow(section, &raw const (*item).next as *const _, side & 1);
            }
            item
        }
    }
}

// SAFETY: loads through the section, and arithmetic that does not overflow, in line.
unsafe impl<K, V> Lookup for Find<'_, K, V> {
    type Output = *const Item<K, V>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Item<K, V> {
        // SAFETY: the caller's promise.
        unsafe { self.walk(section) }
    }
}

/// Finds the first item of that hash, and copies its key and value.
pub(super) struct Copied<'a, K, V>(pub(super) Find<'a, K, V>);

/// The result of [`Copied`]: at most 32 bytes in all.
#[derive(Clone, Copy)]
pub(super) struct Pairs<K, V> {
    pub(super) found: *const Item<K, V>,
    /// The item's, if one was found.
    pub(super) pair: Words<3>,
}

// SAFETY: as above, and a copy in line of what nobody writes to.
unsafe impl<K: Copy, V: Copy> Lookup for Copied<'_, K, V> {
    type Output = Pairs<K, V>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Pairs<K, V> {
        // SAFETY: the caller's promise; the map asks for sizes that fit.
        unsafe {
            let found = self.0.walk(section);
            if found as usize == 0 {
                return Pairs { found, pair: Words::EMPTY };
            }
            Pairs { found, pair: Words::copy(&raw const (*found).pair) }
        }
    }
}

/// With a place: it has several items. Places are the other bits of hashes, and a table has fewer
/// chains than they have values.
pub(super) const TWINS: u64 = 1 << 63;

/// The next of the places that differ in the bits up to `highest`, a power of two; 0 after the
/// last. An addition whose carry goes from the highest bit down. In line, and no calls.
#[inline(always)]
pub(super) fn after(mut place: u64, mut highest: u64) -> u64 {
    while place & highest != 0 {
        place ^= highest;
        highest >>= 1;
    }
    place | highest
}

/// Whether `a` comes before `b`: the lowest bit in which they differ is set in `b`.
#[inline(always)]
fn before(a: u64, b: u64) -> bool {
    let differ = a ^ b;
    differ != 0 && b & differ & (differ ^ (differ - 1)) != 0
}

/// Finds the first item at `place` or behind, in `steps` chains, and the place to go on from: see
/// [`Iter`](super::Iter).
pub(super) struct Next<'a, K, V> {
    pub(super) chains: &'a AtomicPtr<Chains<K, V>>,
    pub(super) place: u64,
    pub(super) steps: usize,
}

// SAFETY: as above.
unsafe impl<K, V> Lookup for Next<'_, K, V> {
    type Output = Part<Item<K, V>>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Part<Item<K, V>> {
        let chains = section.load(self.chains);
        // SAFETY: as in `walk`.
        unsafe {
            let len = section.read(&raw const (*chains).len);
            let side = section.read(&raw const (*chains).tag);
            let slots = &raw const (*chains).slots as *const *mut Item<K, V>;
            let (mut place, mut left) = (self.place, self.steps);
            loop {
                let (mut first, mut first_at, mut twins) = (const { null() }, 0, 0);
                let mut item = follow(section, slots, place as usize & (len - 1));
                while item as usize != 0 {
                    let at = section.read(&raw const (*item).hash) & !TWINS;
                    if !before(at, place) {
                        if first as usize == 0 || before(at, first_at) {
                            (first, first_at, twins) = (item as *const _, at, 0);
                        } else if at == first_at {
                            twins = TWINS;
                        }
                    }
                    item = follow(section, &raw const (*item).next as *const _, side & 1);
                }
                if first as usize != 0 {
                    let place =
                        if twins != 0 { first_at | twins } else { after(first_at, 1 << 62) };
                    return Part { node: first, word: place as usize };
                }
                place = after(place & (len as u64 - 1), len as u64 / 2);
                left -= 1;
                if place == 0 || left == 0 {
                    return Part { node: const { null() }, word: place as usize };
                }
            }
        }
    }
}
