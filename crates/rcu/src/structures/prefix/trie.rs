// SPDX-License-Identifier: MIT OR Apache-2.0
//! The binary trie under [`PrefixTable`](super::PrefixTable), without nodes of one child
//! (Morrison's PATRICIA, 1968; Linux has it for BPF, `kernel/bpf/lpm_trie.c`).
//!
//! A node has a prefix, and up to two children, whose prefixes are longer and begin with it and
//! with the next bit. A node is a *route*, with a value, or a *fork*, which is there for its
//! children only.
//!
//! > **Invariant.** A fork has two children, in each of its states.
//!
//! # Order
//! Only links change: the root and those to children. A writer fills a node in before it publishes
//! the node (release) with one store, and readers acquire each link they follow. So a lookup finds
//! the longest prefix of the trie as it was before or after each update. A node taken out keeps its
//! links, for readers who are on it. Writers exclude each other by a lock.
//!
//! Each lookup is one section, from the root. So there are no marks: no reader follows a link of a
//! node that it found in an earlier section.

use crate::platform::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::structures::lock::Lock;
use crate::structures::node;
use std::ptr::null_mut;

/// An address, its highest bit first, filled up with zeros.
pub(crate) type Bits = [u64; 2];

/// The bits of a prefix, and what lookups compare with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) bits: Bits,
    /// Ones for the bits of the prefix.
    pub(crate) mask: Bits,
    /// A one for the bit behind them.
    pub(crate) next: Bits,
    /// -1: before all prefixes.
    pub(crate) length: i64,
}

fn bits(value: u128) -> Bits {
    [(value >> 64) as u64, value as u64]
}

fn number(bits: Bits) -> u128 {
    u128::from(bits[0]) << 64 | u128::from(bits[1])
}

impl Key {
    pub(crate) const BEFORE_ALL: Key = Key { bits: [0; 2], mask: [0; 2], next: [0; 2], length: -1 };

    /// The first bits of an address. `length`: 0 to 128.
    pub(crate) fn new(address: Bits, length: u32) -> Key {
        let mask = !u128::MAX.checked_shr(length).unwrap_or(0);
        let next = (1u128 << 127).checked_shr(length).unwrap_or(0);
        let value = number(address) & mask;
        Key { bits: bits(value), mask: bits(mask), next: bits(next), length: i64::from(length) }
    }

    /// How many bits the two have in common.
    pub(crate) fn common(&self, other: &Key) -> i64 {
        let same = (number(self.bits) ^ number(other.bits)).leading_zeros();
        i64::from(same).min(self.length).min(other.length)
    }

    /// To which child of a node of this prefix the other belongs.
    pub(crate) fn side(&self, other: &Key) -> usize {
        usize::from((self.next[0] & other.bits[0]) | (self.next[1] & other.bits[1]) != 0)
    }
}

#[repr(C)]
pub(crate) struct Node {
    pub(crate) key: Key,
    /// Whether it lies in a [`Route`]. Else it is a fork.
    pub(crate) route: usize,
    pub(crate) children: [AtomicPtr<Node>; 2],
}

/// The address of a route is that of its node.
#[repr(C)]
pub(crate) struct Route<T> {
    pub(crate) node: Node,
    pub(crate) value: T,
}

fn node(key: Key, route: usize) -> Node {
    let children = [AtomicPtr::new(null_mut()), AtomicPtr::new(null_mut())];
    Node { key, route, children }
}

impl<T> Route<T> {
    /// A route that is in no trie.
    pub(crate) fn allocate(key: Key, value: T) -> *mut Route<T> {
        node::allocate(Route { node: node(key, 1), value })
    }
}

impl Node {
    fn child(&self, side: usize) -> *mut Node {
        self.children[side].load(Ordering::Relaxed)
    }

    /// Of a node that is not published.
    fn adopt(&self, side: usize, child: *mut Node) {
        self.children[side].store(child, Ordering::Relaxed);
    }
}

pub(crate) struct Trie<T> {
    pub(crate) root: AtomicPtr<Node>,
    lock: Lock,
    /// Written under the lock.
    len: AtomicUsize,
    values: std::marker::PhantomData<T>,
}

/// What an update took out, for the caller to retire.
pub(crate) struct Removed<T> {
    /// Null if the prefix had no value.
    pub(crate) route: *mut Route<T>,
    /// Null, or a fork.
    pub(crate) fork: *mut Node,
}

struct Locked<'a>(&'a Lock);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// Changes the trie, in one step.
fn publish(link: &AtomicPtr<Node>, node: *mut Node) {
    #[cfg(all(reprieve_fault, not(loom)))]
    if crate::platform::fault::is(crate::platform::fault::Fault::TwoSteps) {
        link.store(null_mut(), Ordering::Release);
        crate::platform::fault::gap();
    }
    link.store(node, Ordering::Release);
}

impl<T> Trie<T> {
    pub(crate) fn new() -> Trie<T> {
        Trie {
            root: AtomicPtr::new(null_mut()),
            lock: Lock::new(),
            len: AtomicUsize::new(0),
            values: std::marker::PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn lock(&self) -> Locked<'_> {
        self.lock.lock();
        Locked(&self.lock)
    }

    /// The link to the node of the prefix, or to where it would be; and the link to the parent.
    ///
    /// # Safety
    /// Under the lock, for as long as it is held.
    unsafe fn find(&self, key: &Key) -> (&AtomicPtr<Node>, Option<&AtomicPtr<Node>>) {
        let (mut link, mut parent) = (&self.root, None);
        // SAFETY: nothing is taken out under the lock.
        while let Some(node) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
            if node.key.length >= key.length || node.key.common(key) < node.key.length {
                break;
            }
            (parent, link) = (Some(link), &node.children[node.key.side(key)]);
        }
        (link, parent)
    }

    /// Puts the route at its prefix, and returns what was there.
    ///
    /// # Safety
    /// The route is in no trie.
    pub(crate) unsafe fn insert(&self, new: *mut Route<T>) -> Removed<T> {
        let mut removed = Removed { route: null_mut(), fork: null_mut() };
        let _locked = self.lock();
        // SAFETY: under the lock; the new route, and a new fork, are ours until they are published.
        unsafe {
            let (route, key) = (&(*new).node, (*new).node.key);
            let (link, _) = self.find(&key);
            let old = link.load(Ordering::Relaxed);
            let mut top: *mut Node = new.cast();
            if let Some(there) = old.as_ref() {
                let common = there.key.common(&key);
                if common == there.key.length && common == key.length {
                    (0..2).for_each(|side| route.adopt(side, there.child(side)));
                    match there.route {
                        0 => removed.fork = old,
                        _ => removed.route = old.cast(),
                    }
                } else if common == key.length {
                    route.adopt(key.side(&there.key), old);
                } else {
                    let fork = node(Key::new(key.bits, common as u32), 0);
                    fork.adopt(fork.key.side(&key), top);
                    fork.adopt(fork.key.side(&there.key), old);
                    top = node::allocate(fork);
                }
            }
            publish(link, top);
        }
        self.len.store(self.len() + usize::from(removed.route.is_null()), Ordering::Relaxed);
        removed
    }

    /// Takes the route of the prefix out.
    pub(crate) fn remove(&self, key: &Key) -> Removed<T> {
        let mut removed = Removed { route: null_mut(), fork: null_mut() };
        let _locked = self.lock();
        // SAFETY: under the lock.
        unsafe {
            let (link, parent) = self.find(key);
            let old = link.load(Ordering::Relaxed);
            let Some(there) = old.as_ref() else {
                return removed;
            };
            if there.route == 0 || there.key.length != key.length || there.key.bits != key.bits {
                return removed;
            }
            removed.route = old.cast();
            match [there.child(0), there.child(1)] {
                [zero, one] if !zero.is_null() && !one.is_null() => {
                    let fork = node(*key, 0);
                    fork.adopt(0, zero);
                    fork.adopt(1, one);
                    publish(link, node::allocate(fork));
                }
                [zero, one] if !zero.is_null() || !one.is_null() => {
                    let child = if zero.is_null() { one } else { zero };
                    publish(link, child);
                }
                _ => match parent.map(|parent| (parent, parent.load(Ordering::Relaxed))) {
                    // The fork goes as well, and keeps both its links.
                    Some((parent, fork)) if (*fork).route == 0 => {
                        let other = (*fork).child(1 - (*fork).key.side(key));
                        publish(parent, other);
                        removed.fork = fork;
                    }
                    _ => publish(link, null_mut()),
                },
            }
        }
        self.len.store(self.len() - 1, Ordering::Relaxed);
        removed
    }
}

impl<T> Drop for Trie<T> {
    fn drop(&mut self) {
        let mut left = vec![self.root.load(Ordering::Relaxed)];
        while let Some(node) = left.pop() {
            if node.is_null() {
                continue;
            }
            // SAFETY: nobody else can reach the trie or what is in it.
            unsafe {
                left.extend([(*node).child(0), (*node).child(1)]);
                match (*node).route {
                    0 => node::free(node),
                    _ => node::free(node.cast::<Route<T>>()),
                }
            }
        }
    }
}
