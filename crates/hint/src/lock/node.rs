// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places in the queue of a fair lock. A thread has one for each fair lock that it holds or waits
//! for. They are never freed: a wake-up may come late.

use crate::platform::sync::{AtomicPtr, AtomicU32, Futex};

#[repr(C, align(64))]
pub(crate) struct Node {
    /// The next in the queue; while the node is passive, the next of the passive ones.
    pub(crate) next: AtomicPtr<Node>,
    pub(crate) state: Futex,
    /// The waiting thread, as in a lock's word.
    pub(crate) who: AtomicU32,
}

#[cfg(not(loom))]
pub(crate) use real::{give_back, take};

#[cfg(not(loom))]
mod real {
    use super::{AtomicPtr, AtomicU32, Futex, Node};
    use crate::thread::{self, LINES, Line, NOBODY};
    use crate::wait::HELD;
    use std::ptr::null_mut;
    use std::sync::atomic::Ordering;

    /// Nodes of a thread without asking for memory.
    const NEAR: usize = 4;

    impl Node {
        const fn new() -> Node {
            Node { next: AtomicPtr::new(null_mut()), state: Futex::new(0), who: AtomicU32::new(0) }
        }
    }

    static NODES: [[Node; NEAR]; LINES] = [const { [const { Node::new() }; NEAR] }; LINES];

    /// Nodes that were allocated, and are free.
    static FAR: std::sync::Mutex<Vec<&'static Node>> = std::sync::Mutex::new(Vec::new());

    /// A node for the thread of that line.
    #[inline]
    pub(crate) fn take(line: &Line) -> *mut Node {
        let (index, used) = (line.index(), line.nodes.load(Ordering::Relaxed));
        let free = used.trailing_ones() as usize;
        if index == NOBODY || free >= NEAR {
            return take_far(index);
        }
        line.nodes.store(used | 1 << free, Ordering::Relaxed);
        let node = &NODES[index as usize][free];
        node.who.store(index | HELD, Ordering::Relaxed);
        std::ptr::from_ref(node).cast_mut()
    }

    #[cold]
    fn take_far(index: u32) -> *mut Node {
        let mut free = FAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let node = free.pop().unwrap_or_else(|| Box::leak(Box::new(Node::new())));
        node.who.store(index | HELD, Ordering::Relaxed);
        std::ptr::from_ref(node).cast_mut()
    }

    /// By the thread that took it.
    #[inline]
    pub(crate) fn give_back(node: *mut Node) {
        let distance = node.addr().wrapping_sub((&raw const NODES).addr());
        let place = distance / size_of::<Node>();
        if place < LINES * NEAR {
            let line = thread::line((place / NEAR) as u32);
            let used = line.nodes.load(Ordering::Relaxed);
            line.nodes.store(used & !(1 << (place % NEAR)), Ordering::Relaxed);
            return;
        }
        let mut free = FAR.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: nodes live for good.
        free.push(unsafe { &*node });
    }
}

#[cfg(loom)]
pub(crate) use crate::model::env::{give_back, take};
