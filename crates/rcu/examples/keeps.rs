// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lookups of several shapes that keep the rules in every profile: the tests build this program and
//! verify it.

use reprieve::{Lookup, Section};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

struct Node {
    key: u64,
    value: Value,
    next: AtomicPtr<Node>,
}

/// 32 bytes: what unoptimized code copies without calling memcpy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value(u64, u64, u64, u64);

/// The value of a key, copied.
struct Find<'a>(&'a AtomicPtr<Node>, u64);

// SAFETY: loads through the section only, in line; the copy is word by word.
unsafe impl Lookup for Find<'_> {
    type Output = Value;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> Value {
        let mut node = section.load(self.0);
        let mut value = Value(0, 0, 0, 0);
        while node as usize != 0 {
            // SAFETY: alive in this section.
            unsafe {
                if section.read(&raw const (*node).key) == self.1 {
                    value = Value(
                        section.read(&raw const (*node).value.0),
                        section.read(&raw const (*node).value.1),
                        section.read(&raw const (*node).value.2),
                        section.read(&raw const (*node).value.3),
                    );
                    break;
                }
                node = section.read(&raw const (*node).next as *const *mut Node);
            }
        }
        value
    }
}

/// The node of a key.
struct Get<'a>(&'a AtomicPtr<Node>, u64);

// SAFETY: as above.
unsafe impl Lookup for Get<'_> {
    type Output = *const Node;
    const UNOPTIMIZED: bool = true;

    #[inline(always)]
    unsafe fn run(&self, section: &Section) -> *const Node {
        let mut node = section.load(self.0);
        while node as usize != 0 {
            // SAFETY: alive in this section.
            unsafe {
                if section.read(&raw const (*node).key) == self.1 {
                    break;
                }
                node = section.read(&raw const (*node).next as *const *mut Node);
            }
        }
        node
    }
}

fn main() {
    let list = AtomicPtr::new(null_mut());
    for key in 0..4 {
        let next = AtomicPtr::new(list.load(std::sync::atomic::Ordering::Relaxed));
        let node = Box::leak(Box::new(Node { key, value: Value(key, 1, 2, 3), next }));
        list.store(node, std::sync::atomic::Ordering::Release);
    }
    // SAFETY: nothing is ever freed.
    unsafe {
        assert_eq!(reprieve::lookup(&Find(&list, 2)), Value(2, 1, 2, 3));
        assert_eq!(reprieve::protect(&Get(&list, 3)).map(|node| node.key), Some(3));
    }
}
