// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pointer of a `Cell`: publication, exchange, read-copy-update.

use super::tools::{Node, World, check};
use crate::grace::engine::poll::Poll;
use crate::grace::sequence::Sequence;
use crate::grace::stats;
use crate::platform::barrier::{Kind, light};
use crate::structures::pointer::Pointer;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    world: Arc<World>,
    grace: Sequence,
    stats: stats::GraceStats,
    cell: Pointer<Node>,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let cell = Pointer::new(Node::make(1));
        Arc::new(Shared {
            world: World::new(),
            grace: Sequence::new(),
            stats: stats::GraceStats::new(),
            cell,
        })
    }

    fn read(&self, thread: u32) -> u64 {
        let record = self.world.registry.claim(thread).unwrap();
        record.enter();
        light();
        let value = Node::read(self.cell.load());
        record.leave();
        record.release();
        assert_ne!(value, u64::MAX);
        value
    }

    fn reclaim(&self, old: *mut Node) {
        // A single thread leads, or both one after the other.
        let attempt = self.world.attempt(Kind::Membarrier);
        assert!(self.grace.run_until(self.grace.cookie(), &attempt, &Poll, &self.stats));
        Node::free(old);
    }

    /// `Cell::update` with the increment of a counter.
    fn increment(&self, thread: u32, in_section: bool) {
        let record = self.world.registry.claim(thread).unwrap();
        let old = loop {
            if in_section {
                record.enter();
                light();
            }
            let current = self.cell.load();
            let new = Node::make(Node::read(current) + 1);
            let replaced = self.cell.replace(current, new);
            if in_section {
                record.leave();
            }
            match replaced {
                Ok(old) => break old,
                Err(_) => Node::free(new),
            }
        };
        record.release();
        self.reclaim(old);
    }
}

#[test]
fn swap() {
    check(3, || {
        let shared = Shared::new();
        let reader = shared.clone();
        let reader = thread::spawn(move || {
            let first = reader.read(1);
            let second = reader.read(1);
            assert!(first <= second);
        });
        shared.reclaim(shared.cell.swap(Node::make(2)));
        reader.join().unwrap();
    });
}

fn two_updates(in_section: bool) {
    check(2, move || {
        let shared = Shared::new();
        let other = shared.clone();
        let other = thread::spawn(move || other.increment(1, in_section));
        shared.increment(2, in_section);
        other.join().unwrap();
        assert_eq!(Node::read(shared.cell.load()), 3);
    });
}

#[test]
fn no_update_is_lost() {
    two_updates(true);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_update_outside_a_section_is_caught() {
    two_updates(false);
}
