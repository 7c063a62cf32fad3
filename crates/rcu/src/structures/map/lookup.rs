// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map's restartable lookups: [`Table::find`](super::table::Table::find) in loads that may run
//! inside the section.
//!
//! A key's own `==` may not: it is the user's code. Inside only the hashes are compared, all 64
//! bits; the caller compares the keys, outside, of the first item with that hash, and searches in a
//! plain section if they differ (once in 2^64).

use super::table::{Chains, Item, Pair};
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::structures::array::Array;
use crate::structures::copy::Words;
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

/// What [`Copied`] returns: at most 32 bytes in all.
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
