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
use crate::structures::array::Array;
use crate::structures::copy::Words;
use crate::structures::node::Pair;
use std::mem::offset_of;
use std::sync::atomic::AtomicPtr;

/// Finds the first item of that hash, and protects it.
pub(super) struct Find<'a, K, V> {
    pub(super) chains: &'a AtomicPtr<Chains<K, V>>,
    pub(super) hash: u64,
}

impl<K, V> Find<'_, K, V> {
    /// 0 if there is none.
    ///
    /// # Safety
    /// In a section of the map's domain.
    #[inline(always)]
    unsafe fn walk(&self, section: &Section) -> usize {
        let chains = section.load(self.chains) as usize;
        // SAFETY: the chains are alive in the section, the index is in range, and the items found
        // are alive, too. The first links of an item are its two `next`, one word each.
        unsafe {
            let mask = section.read((chains + offset_of!(Chains<K, V>, len)) as *const usize) - 1;
            let side = section.read((chains + offset_of!(Chains<K, V>, tag)) as *const usize);
            let slot = chains
                + Array::<Item<K, V>>::SLOTS
                + (self.hash as usize & mask) * size_of::<usize>();
            let mut item = section.read(slot as *const usize);
            while item != 0 {
                if section.read((item + offset_of!(Item<K, V>, hash)) as *const u64) == self.hash {
                    break;
                }
                item = section.read((item + (side & 1) * size_of::<usize>()) as *const usize);
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
        unsafe { self.walk(section) as *const Item<K, V> }
    }
}

/// Finds the first item of that hash, and copies its key and value.
pub(super) struct Copied<'a, K, V>(pub(super) Find<'a, K, V>);

/// The result of [`Copied`]: at most 32 bytes in all.
#[derive(Clone, Copy)]
pub(super) struct Pairs {
    pub(super) found: usize,
    /// A [`Pair`] if one was found.
    pub(super) pair: Words<3>,
}

// SAFETY: as above, and a copy in line of what nobody writes to.
unsafe impl<K: Copy, V: Copy> Lookup for Copied<'_, K, V> {
    type Output = Pairs;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Pairs {
        // SAFETY: the caller's promise; the map asks for sizes that fit.
        unsafe {
            let found = self.0.walk(section);
            if found == 0 {
                return Pairs { found, pair: Words::EMPTY };
            }
            let pair = (found + offset_of!(Item<K, V>, pair)) as *const Pair<K, V>;
            Pairs { found, pair: Words::copy(pair) }
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
        let chains = section.load(self.chains) as usize;
        // SAFETY: as in `walk`.
        unsafe {
            let len = section.read((chains + offset_of!(Chains<K, V>, len)) as *const usize);
            let side = section.read((chains + offset_of!(Chains<K, V>, tag)) as *const usize);
            let slots = chains + Array::<Item<K, V>>::SLOTS;
            let (mut place, mut left) = (self.place, self.steps);
            loop {
                let (mut first, mut first_at, mut twins) = (0, 0, 0);
                let slot = slots + (place as usize & (len - 1)) * size_of::<usize>();
                let mut item = section.read(slot as *const usize);
                while item != 0 {
                    let at = section.read((item + offset_of!(Item<K, V>, hash)) as *const u64);
                    let at = at & !TWINS;
                    if !before(at, place) {
                        if first == 0 || before(at, first_at) {
                            (first, first_at, twins) = (item, at, 0);
                        } else if at == first_at {
                            twins = TWINS;
                        }
                    }
                    item = section.read((item + (side & 1) * size_of::<usize>()) as *const usize);
                }
                if first != 0 {
                    let place =
                        if twins != 0 { first_at | twins } else { after(first_at, 1 << 62) };
                    return Part { node: first as *const Item<K, V>, word: place as usize };
                }
                place = after(place & (len as u64 - 1), len as u64 / 2);
                left -= 1;
                if place == 0 || left == 0 {
                    return Part { node: const { std::ptr::null() }, word: place as usize };
                }
            }
        }
    }
}
