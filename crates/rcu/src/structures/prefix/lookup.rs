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
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

const BITS: usize = offset_of!(Node, key) + offset_of!(Key, bits);
const MASK: usize = offset_of!(Node, key) + offset_of!(Key, mask);
const NEXT: usize = offset_of!(Node, key) + offset_of!(Key, next);
const LENGTH: usize = offset_of!(Node, key) + offset_of!(Key, length);
const CHILDREN: usize = offset_of!(Node, children);

/// # Safety
/// The node is alive in the section. For use inside: no calls.
#[inline(always)]
unsafe fn field(section: &Section, node: *const Node, offset: usize) -> u64 {
    // SAFETY: the caller's promise; fields of eight bytes.
    unsafe { section.read((node as *const u8).wrapping_add(offset) as *const u64) }
}

/// The child whose link lies at that offset.
///
/// # Safety
/// As for [`field`].
#[inline(always)]
unsafe fn follow(section: &Section, node: *const Node, offset: usize) -> *mut Node {
    // SAFETY: the caller's promise.
    unsafe { section.read((node as *const u8).wrapping_add(offset) as *const *mut Node) }
}

/// The child to which the address belongs, and how far its link is behind the first.
///
/// # Safety
/// As for [`field`].
#[inline(always)]
unsafe fn child(section: &Section, node: *const Node, [high, low]: Bits) -> (*mut Node, usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let next = (high & field(section, node, NEXT)) | (low & field(section, node, NEXT + 8));
        let side = if next == 0 { 0 } else { size_of::<usize>() };
        (follow(section, node, CHILDREN + side), side)
    }
}

/// Whether an address begins with the node's prefix.
///
/// # Safety
/// As for [`field`].
#[inline(always)]
unsafe fn covers(section: &Section, node: *const Node, [high, low]: Bits) -> bool {
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
            let (mut node, mut best) = (section.load(self.root), const { null_mut() });
            while node as usize != 0 {
                if !covers(section, node, self.address) {
                    break;
                }
                if section.read(&raw const (*node).route) != 0 {
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
pub(super) struct Found<T> {
    pub(super) route: *const Route<T>,
    /// A value, if there is a route.
    pub(super) value: Words<3>,
}

// SAFETY: as above, and a copy in line of what nobody writes to.
unsafe impl<K: Copy, V: Copy> Lookup for Copied<'_, Pair<K, V>> {
    type Output = Found<Pair<K, V>>;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Found<Pair<K, V>> {
        // SAFETY: the caller's promise; the table asks for sizes that fit.
        unsafe {
            let route = self.0.run(section);
            if route as usize == 0 {
                return Found { route, value: Words::EMPTY };
            }
            Found { route, value: Words::copy(&raw const (*route).value.value) }
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
            let (mut node, mut found) = (section.load(self.root), const { null_mut() });
            while node as usize != 0 {
                let length = field(section, node, LENGTH) as i64;
                if length >= self.key.length || !covers(section, node, self.key.bits) {
                    let same = length == self.key.length && covers(section, node, self.key.bits);
                    if same && section.read(&raw const (*node).route) != 0 {
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
            let (mut node, mut behind) = (section.load(self.root), const { null_mut() });
            while node as usize != 0 {
                let own = field(section, node, LENGTH) as i64;
                if own <= length && covers(section, node, self.last.bits) {
                    let zero = follow(section, node, CHILDREN);
                    let one = follow(section, node, CHILDREN + size_of::<usize>());
                    if own == length {
                        if zero as usize != 0 {
                            behind = zero;
                        } else if one as usize != 0 {
                            behind = one;
                        }
                        break;
                    }
                    let (child, side) = child(section, node, self.last.bits);
                    if side == 0 && one as usize != 0 {
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
            while behind as usize != 0 && section.read(&raw const (*behind).route) == 0 {
                behind = follow(section, behind, CHILDREN);
            }
            behind as *const Route<T>
        }
    }
}
