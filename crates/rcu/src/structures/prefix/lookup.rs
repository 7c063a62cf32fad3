// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trie's restartable lookups. Each link on the way leads to a longer prefix, so each ends
//! after 129 nodes at most (twice as many for [`Next`]).

use super::trie::{Bits, Key, Node, Route};
use crate::read::restart::Lookup;
use crate::read::restart::section::Section;
use crate::structures::copy::Words;
use crate::structures::node::Pair;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::atomic::AtomicPtr;

const BITS: usize = offset_of!(Node, key) + offset_of!(Key, bits);
const MASK: usize = offset_of!(Node, key) + offset_of!(Key, mask);
const NEXT: usize = offset_of!(Node, key) + offset_of!(Key, next);
const LENGTH: usize = offset_of!(Node, key) + offset_of!(Key, length);
const ROUTE: usize = offset_of!(Node, route);
const CHILDREN: usize = offset_of!(Node, children);

/// # Safety
/// The node is alive in the section. For use inside: no calls.
#[inline(always)]
unsafe fn field(section: &Section, node: usize, offset: usize) -> u64 {
    // SAFETY: the caller's promise; fields of eight bytes.
    unsafe { section.read((node + offset) as *const u64) }
}

/// The child to which the address belongs.
///
/// # Safety
/// As for [`field`].
#[inline(always)]
unsafe fn child(section: &Section, node: usize, [high, low]: Bits) -> (usize, usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let next = (high & field(section, node, NEXT)) | (low & field(section, node, NEXT + 8));
        let side = if next == 0 { 0 } else { size_of::<usize>() };
        (section.read((node + CHILDREN + side) as *const usize), side)
    }
}

/// Whether an address begins with the node's prefix.
///
/// # Safety
/// As for [`field`].
#[inline(always)]
unsafe fn covers(section: &Section, node: usize, [high, low]: Bits) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let high = (high ^ field(section, node, BITS)) & field(section, node, MASK);
        let low = (low ^ field(section, node, BITS + 8)) & field(section, node, MASK + 8);
        (high | low) == 0
    }
}

/// Finds the route of the longest prefix that matches an address.
pub(super) struct Longest<'a, T> {
    pub(super) root: &'a AtomicPtr<Node>,
    pub(super) address: Bits,
    pub(super) values: PhantomData<T>,
}

// SAFETY: loads through the section, and bitwise operations, in line.
unsafe impl<T> Lookup for Longest<'_, T> {
    type Output = *const Route<T>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Route<T> {
        // SAFETY: everything that is found in the section is alive in it.
        unsafe {
            let (mut node, mut best) = (section.load(self.root) as usize, 0);
            while node != 0 {
                if !covers(section, node, self.address) {
                    break;
                }
                if section.read((node + ROUTE) as *const usize) != 0 {
                    best = node;
                }
                node = child(section, node, self.address).0;
            }
            best as *const Route<T>
        }
    }
}

/// Finds the route of the longest prefix that matches an address, and copies its value.
pub(super) struct Copied<'a, T>(pub(super) Longest<'a, T>);

/// The result of [`Copied`]: 32 bytes.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) route: usize,
    /// A value, if there is a route.
    pub(super) value: Words<3>,
}

// SAFETY: as above, and a copy in line of what nobody writes to.
unsafe impl<K: Copy, V: Copy> Lookup for Copied<'_, Pair<K, V>> {
    type Output = Found;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Found {
        // SAFETY: the caller's promise; the table asks for sizes that fit.
        unsafe {
            let route = self.0.run(section) as usize;
            if route == 0 {
                return Found { route, value: Words::EMPTY };
            }
            let value = offset_of!(Route<Pair<K, V>>, value) + offset_of!(Pair<K, V>, value);
            Found { route, value: Words::copy((route + value) as *const V) }
        }
    }
}

/// Finds the route of that very prefix.
pub(super) struct Exact<'a, T> {
    pub(super) root: &'a AtomicPtr<Node>,
    pub(super) key: Key,
    pub(super) values: PhantomData<T>,
}

// SAFETY: as for `Longest`, and comparisons of integers.
unsafe impl<T> Lookup for Exact<'_, T> {
    type Output = *const Route<T>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Route<T> {
        // SAFETY: as for `Longest`.
        unsafe {
            let (mut node, mut found) = (section.load(self.root) as usize, 0);
            while node != 0 {
                let length = field(section, node, LENGTH) as i64;
                if length >= self.key.length || !covers(section, node, self.key.bits) {
                    let same = length == self.key.length && covers(section, node, self.key.bits);
                    if same && section.read((node + ROUTE) as *const usize) != 0 {
                        found = node;
                    }
                    break;
                }
                node = child(section, node, self.key.bits).0;
            }
            found as *const Route<T>
        }
    }
}

/// Finds the first route behind a prefix: routes are in the order of their addresses, and at one
/// address the shorter prefix comes first.
pub(super) struct Next<'a, T> {
    pub(super) root: &'a AtomicPtr<Node>,
    pub(super) last: Key,
    pub(super) values: PhantomData<T>,
}

// SAFETY: as above.
unsafe impl<T> Lookup for Next<'_, T> {
    type Output = *const Route<T>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Route<T> {
        let Key { bits: [high, low], mask, length, .. } = self.last;
        // SAFETY: as for `Longest`. A fork has two children.
        unsafe {
            // The nodes under `behind` are all behind the prefix, and there is none before them.
            let (mut node, mut behind) = (section.load(self.root) as usize, 0);
            while node != 0 {
                let own = field(section, node, LENGTH) as i64;
                if own <= length && covers(section, node, self.last.bits) {
                    let zero = section.read((node + CHILDREN) as *const usize);
                    let one = section.read((node + CHILDREN + size_of::<usize>()) as *const usize);
                    if own == length {
                        if zero != 0 {
                            behind = zero;
                        } else if one != 0 {
                            behind = one;
                        }
                        break;
                    }
                    let (child, side) = child(section, node, self.last.bits);
                    if side == 0 && one != 0 {
                        behind = one;
                    }
                    node = child;
                    continue;
                }
                let (above, below) = (field(section, node, BITS), field(section, node, BITS + 8));
                let within = (((above ^ high) & mask[0]) | ((below ^ low) & mask[1])) == 0;
                if within || above > high || (above == high && below > low) {
                    behind = node;
                }
                break;
            }
            while behind != 0 && section.read((behind + ROUTE) as *const usize) == 0 {
                behind = section.read((behind + CHILDREN) as *const usize);
            }
            behind as *const Route<T>
        }
    }
}
