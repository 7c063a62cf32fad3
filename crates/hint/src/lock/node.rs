// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places in the queue of a fair lock. A thread has one for each fair lock that it holds or waits
//! for. They are never freed: a wake-up may come late. Nodes of threads that a fork
//! left behind are not used again.
//!
//! A thread has some of its own. Further ones lie in blocks of a page, all threads': a bit says
//! which are in use, and whoever sets it has the node. Nothing is under a lock: a signal handler,
//! or the child of a fork, would wait for ever for a thread that had it.

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
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Nodes of a thread without asking for memory.
    const NEAR: usize = 4;
    /// Nodes of a block: with its head, which is as large, they fill a page.
    const FAR: usize = 63;
    const PAGE: usize = 4096;

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

    /// Further nodes. All zeros are a block with none in use.
    #[repr(C, align(64))]
    struct Block {
        /// Bit n: node n.
        used: AtomicU64,
        next: AtomicPtr<Block>,
        _pad: [u64; 6],
        nodes: [Node; FAR],
    }

    const _: () = assert!(size_of::<Block>() == PAGE);

    /// The block that was made last. Blocks stay.
    static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(null_mut());

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

    fn blocks() -> impl Iterator<Item = &'static Block> {
        // SAFETY: null, or a block that stays.
        let block = |at: &AtomicPtr<Block>| unsafe { at.load(Ordering::Acquire).as_ref() };
        std::iter::successors(block(&BLOCKS), move |last| block(&last.next))
    }

    impl Block {
        fn take(&self) -> Option<&Node> {
            let mut used = self.used.load(Ordering::Relaxed);
            loop {
                let free = used.trailing_ones() as usize;
                let node = self.nodes.get(free)?;
                let (to, order) = (used | 1 << free, (Ordering::Acquire, Ordering::Relaxed));
                match self.used.compare_exchange(used, to, order.0, order.1) {
                    Ok(_) => return Some(node),
                    Err(now) => used = now,
                }
            }
        }
    }

    #[cold]
    fn take_far() -> &'static Node {
        if let Some(node) = blocks().find_map(Block::take) {
            return node;
        }
        // All are in use; or another thread makes one, and there will be one too many.
        // SAFETY: zeros are a block, and it is in no list.
        let block: &'static Block = unsafe { &sys::zeroed(1)[0] };
        block.used.store(1, Ordering::Relaxed);
        let at = std::ptr::from_ref(block).cast_mut();
        // Whoever gives one of its nodes back finds the block by the node's address.
        at.expose_provenance();
        let mut next = BLOCKS.load(Ordering::Relaxed);
        loop {
            block.next.store(next, Ordering::Relaxed);
            match BLOCKS.compare_exchange(next, at, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return &block.nodes[0],
                Err(now) => next = now,
            }
        }
    }

    fn give_back_far(node: usize) {
        let at = std::ptr::with_exposed_provenance::<Block>(node & !(PAGE - 1));
        // SAFETY: a node of a block, which is a page and stays.
        let used = unsafe { &(*at).used };
        used.fetch_and(!(1 << (node % PAGE / size_of::<Node>() - 1)), Ordering::Release);
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
        give_back_far(node.addr());
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Threads that take and give back at the same time do not find all in use, however often.
        #[test]
        fn further_nodes_do_not_grow_in_number() {
            const THREADS: usize = 4;
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..10_000 {
                            let nodes = [(); 8].map(|()| std::ptr::from_ref(take_far()));
                            for (i, node) in nodes.iter().enumerate() {
                                assert!(!nodes[..i].contains(node));
                            }
                            nodes.iter().for_each(|node| give_back(node.cast_mut()));
                        }
                    });
                }
            });
            // Each may have made one when there was none, and tests of locks use some.
            assert!((1..=THREADS + 2).contains(&blocks().count()));
        }
    }
}

#[cfg(all(loom, test))]
pub(crate) use modelled::ghost;
#[cfg(loom)]
pub(crate) use modelled::{give_back, take};

#[cfg(loom)]
mod modelled {
    use super::{AtomicPtr, AtomicU32, Futex, Node};
    use crate::platform::fork::epoch;
    use crate::platform::sync::Ordering;
    use crate::thread::Line;
    use crate::wait::HELD;
    use std::ptr::null_mut;

    /// Nodes are never freed, as in the real thing.
    pub(crate) fn take(line: &Line) -> *mut Node {
        Box::into_raw(Box::new(Node {
            next: AtomicPtr::new(null_mut()),
            state: Futex::new(0),
            who: AtomicU32::new(line.thread.load(Ordering::Relaxed) | HELD),
            epoch: AtomicU32::new(epoch()),
        }))
    }

    /// A node as a thread of the process that forked this one left it.
    #[cfg(test)]
    pub(crate) fn ghost(line: &Line) -> *mut Node {
        let node = take(line);
        // SAFETY: made above.
        unsafe { (*node).epoch.store(epoch() - 1, Ordering::Relaxed) };
        node
    }

    pub(crate) fn give_back(_: *mut Node) {}
}
