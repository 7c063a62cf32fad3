// SPDX-License-Identifier: MIT OR Apache-2.0
//! The map's table: readers against removal, replacement and growth. A key is a node, read for each
//! item that a walk looks at, so that a walk across a freed item is noticed.

use super::tools::{Node, World, check};
use crate::grace::engine::GraceEngine;
use crate::grace::engine::poll::Poll;
use crate::platform::barrier::{Kind, light};
use crate::structures::map::table::{Item, STRIPES, Table};
use loom::sync::Arc;
use loom::thread;

struct Key(*mut Node);

struct Shared {
    world: Arc<World>,
    table: Table<Key, u64>,
}

// SAFETY: the pointer leads to a node of the model, whose accesses loom checks.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

/// Two keys of one chain, in the smallest table, which grown tables keep apart; both are under the
/// same lock.
const A: u64 = 0;
const B: u64 = STRIPES as u64;

impl Shared {
    /// `A` comes before `B` in their chain.
    fn new() -> Arc<Shared> {
        let shared = Shared { world: World::new(), table: Table::new(STRIPES) };
        shared.insert(B, 1);
        shared.insert(A, 1);
        Arc::new(shared)
    }

    fn item(key: u64, value: u64) -> *mut Item<Key, u64> {
        Item::allocate(key, Key(Node::make(key)), value)
    }

    fn insert(&self, key: u64, value: u64) {
        self.table.lock(key).insert(Shared::item(key, value));
    }

    fn remove(&self, key: u64) -> *mut Item<Key, u64> {
        let locked = self.table.lock(key);
        let position = locked.find(key, |item| item.hash == key).unwrap();
        locked.remove(position)
    }

    fn replace(&self, key: u64, value: u64) -> *mut Item<Key, u64> {
        let locked = self.table.lock(key);
        let position = locked.find(key, |item| item.hash == key).unwrap();
        locked.replace(position, Shared::item(key, value))
    }

    fn grace_period(&self) {
        assert!(Poll.grace_period(&self.world.attempt(Kind::Membarrier)));
    }

    /// Poisons the item. (The memory is not given back.)
    fn free(&self, item: *mut Item<Key, u64>) {
        // SAFETY: never given back.
        Node::free(unsafe { (*item).pair.key.0 });
    }

    /// Values of the keys, in one section.
    fn read<const N: usize>(&self, keys: [u64; N]) -> [Option<u64>; N] {
        let record = self.world.registry.claim(1).unwrap();
        record.enter();
        light();
        let values = keys.map(|key| {
            // SAFETY: in a section; chains and items are never given back.
            unsafe {
                let item = self.table.find(key, |k| {
                    let found = Node::read(k.0);
                    assert_ne!(found, u64::MAX);
                    found == key
                });
                item.map(|item| item.as_ref().pair.value)
            }
        });
        record.leave();
        record.release();
        values
    }
}

fn run<const N: usize>(keys: [u64; N], check_values: fn([Option<u64>; N]), writer: fn(&Shared)) {
    check(2, move || {
        let shared = Shared::new();
        let reader = shared.clone();
        let reader = thread::spawn(move || check_values(reader.read(keys)));
        writer(&shared);
        reader.join().unwrap();
    });
}

#[test]
fn removal() {
    run(
        [B],
        |[b]| assert_eq!(b, Some(1)),
        |shared| {
            let item = shared.remove(A);
            shared.grace_period();
            shared.free(item);
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_removal_without_a_grace_period_is_caught() {
    run([B], |_| (), |shared| shared.free(shared.remove(A)));
}

#[test]
fn replacement() {
    run(
        [A, B],
        |[a, b]| assert!(matches!(a, Some(1 | 2)) && b == Some(1)),
        |shared| {
            let item = shared.replace(A, 2);
            shared.grace_period();
            shared.free(item);
        },
    );
}

#[test]
fn growth_hides_nothing() {
    run(
        [A, B],
        |values| assert_eq!(values, [Some(1); 2]),
        |shared| {
            // SAFETY: the grace period is between the two.
            unsafe { shared.table.relink(2 * STRIPES) };
            shared.grace_period();
            // SAFETY: as above.
            unsafe { shared.table.relink(4 * STRIPES) };
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_growth_without_a_grace_period_is_caught() {
    run(
        [A, B],
        |values| assert_eq!(values, [Some(1); 2]),
        |shared| {
            // SAFETY: not sound: that is the test.
            unsafe {
                shared.table.relink(2 * STRIPES);
                shared.table.relink(4 * STRIPES);
            }
        },
    );
}

#[test]
fn removal_after_growth() {
    // A reader of the old table may still find what is removed from the new.
    run(
        [B],
        |[b]| assert_eq!(b, Some(1)),
        |shared| {
            // SAFETY: the first growth.
            unsafe { shared.table.relink(2 * STRIPES) };
            let item = shared.remove(A);
            shared.grace_period();
            shared.free(item);
        },
    );
}

#[test]
fn writers_and_growth_exclude_each_other() {
    check(2, || {
        let shared = Shared::new();
        let other = shared.clone();
        let other = thread::spawn(move || {
            other.insert(1, 1);
            other.remove(A);
        });
        // SAFETY: the first growth.
        unsafe { shared.table.relink(2 * STRIPES) };
        other.join().unwrap();
        assert_eq!(shared.read([A, B, 1]), [None, Some(1), Some(1)]);
        assert_eq!(shared.table.len(), 2);
    });
}
