// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places in the queue of a fair lock. A thread has one for each fair lock that it holds or waits
//! for. They are never freed: a wake-up may come late. Nodes of threads that a fork
//! left behind are not used again.

use crate::platform::sync::{AtomicPtr, AtomicU32, Futex};

/// All zeros are a node that is free.
#[repr(C, align(64))]
pub(crate) struct Node {
    /// The next in the queue; while the node is passive, the next of the passive ones.
    pub(crate) next: AtomicPtr<Node>,
    pub(crate) state: Futex,
    /// The waiting thread, as in a lock's word.
    pub(crate) who: AtomicU32,
    /// The process that put it into a queue (`platform/fork.rs`).
    pub(crate) epoch: AtomicU32,
}

#[cfg(not(loom))]
pub(crate) use real::{give_back, take};

#[cfg(not(loom))]
mod real {
    use super::{AtomicPtr, AtomicU32, Futex, Node};
    use crate::platform::{fork, sys};
    use crate::thread::{self, LINES, Line, NOBODY};
    use crate::wait::HELD;
    use std::ptr::null_mut;
    use std::sync::atomic::Ordering;

    /// Nodes of a thread without asking for memory.
    const NEAR: usize = 4;
    /// Nodes for which memory is asked at a time.
    const MORE: usize = 64;

    impl Node {
        const fn new() -> Node {
            Node {
                next: AtomicPtr::new(null_mut()),
                state: Futex::new(0),
                who: AtomicU32::new(0),
                epoch: AtomicU32::new(0),
            }
        }
    }

    static NODES: [[Node; NEAR]; LINES] = [const { [const { Node::new() }; NEAR] }; LINES];

    /// Further nodes that are free, linked by `next`. Not under a lock: a signal handler, or the
    /// child of a fork, would wait for ever for a thread that had it. A thread takes the whole list
    /// and puts back what it does not need, so no node comes back while another thread looks at it.
    static FAR: AtomicPtr<Node> = AtomicPtr::new(null_mut());

    /// A node for the thread of that line.
    #[inline]
    pub(crate) fn take(line: &Line) -> *mut Node {
        let (index, used) = (line.index(), line.nodes.load(Ordering::Relaxed));
        let free = used.trailing_ones() as usize;
        let node = if index == NOBODY || free >= NEAR {
            take_far()
        } else {
            line.nodes.store(used | 1 << free, Ordering::Relaxed);
            &NODES[index as usize][free]
        };
        // Mostly they are what they were: a store would have to be over before the exchange that
        // puts the node into a queue.
        change(&node.who, index | HELD);
        change(&node.epoch, fork::epoch());
        std::ptr::from_ref(node).cast_mut()
    }

    #[inline(always)]
    fn change(word: &AtomicU32, to: u32) {
        if word.load(Ordering::Relaxed) != to {
            word.store(to, Ordering::Relaxed);
        }
    }

    #[cold]
    fn take_far() -> &'static Node {
        let all = FAR.swap(null_mut(), Ordering::Acquire);
        // SAFETY: nodes live for good, and those of the list are this thread's now.
        if let Some(node) = unsafe { all.as_ref() } {
            put_far(node.next.load(Ordering::Relaxed));
            return node;
        }
        // SAFETY: zeros are a free node.
        let more: &'static [Node] = unsafe { sys::zeroed(MORE) };
        for pair in more[1..].windows(2) {
            pair[0].next.store(std::ptr::from_ref(&pair[1]).cast_mut(), Ordering::Relaxed);
        }
        put_far(std::ptr::from_ref(&more[1]).cast_mut());
        &more[0]
    }

    /// Makes these nodes, linked by `next`, free.
    fn put_far(first: *mut Node) {
        if first.is_null() {
            return;
        }
        let mut last = first;
        // SAFETY: nodes live for good, and these are this thread's.
        let next = |node: *mut Node| unsafe { &(*node).next };
        while !next(last).load(Ordering::Relaxed).is_null() {
            last = next(last).load(Ordering::Relaxed);
        }
        let mut after = FAR.load(Ordering::Relaxed);
        loop {
            next(last).store(after, Ordering::Relaxed);
            let put = FAR.compare_exchange(after, first, Ordering::Release, Ordering::Relaxed);
            match put {
                Ok(_) => return,
                Err(now) => after = now,
            }
        }
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
        // SAFETY: nodes live for good, and this one is not in a queue any more.
        unsafe { (*node).next.store(null_mut(), Ordering::Relaxed) };
        put_far(node);
    }
}

#[cfg(loom)]
pub(crate) use crate::model::env::{give_back, take};
