// SPDX-License-Identifier: MIT OR Apache-2.0
//! The skip list: a search in hops (`structures/ordered/search.rs`), and one in a plain section,
//! against removal and replacement. A key is a node, read where it is compared, so that a search
//! that stops at a freed item is noticed.

use super::protect::{Aborted, arm, disarm, grace_period, instruction, scan};
use super::tools::{Node, World, check};
use crate::platform::barrier::light;
use crate::platform::sync::{AtomicUsize, Ordering};
use crate::structures::ordered::links::{Item, Levels, Link, MARK};
use crate::thread::record::Record;
use crate::thread::slots::RESERVED;
use loom::sync::Arc;
use loom::thread;
use std::ptr::{null, null_mut};

struct Key(*mut Node);

// SAFETY: the pointer leads to a node of the model, whose accesses loom checks.
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Key {
    fn read(&self) -> u64 {
        let key = Node::read(self.0);
        assert_ne!(key, u64::MAX);
        key
    }
}

type List = Levels<Key, u64>;

struct Shared {
    world: Arc<World>,
    list: List,
}

impl Shared {
    /// The keys 1, of height 2, and 2 and 3, of height 1, all with the value 1.
    fn new() -> Arc<Shared> {
        let shared = Shared { world: World::new(), list: Levels::new() };
        (1..=3).for_each(|key| _ = shared.put(key, Some((1, if key == 1 { 2 } else { 1 }))));
        Arc::new(shared)
    }

    /// Puts an item of that value and height in the key's place, or nothing.
    fn put(&self, key: u64, item: Option<(u64, usize)>) -> *mut Item<Key, u64> {
        let locked = self.list.lock();
        let place = locked.find(|k| k.read().cmp(&key));
        let new = item.map_or(null_mut(), |(value, height)| {
            Item::allocate(height, Key(Node::make(key)), value)
        });
        // SAFETY: found under the lock, for that key.
        unsafe { locked.put(&place, new) }
    }

    /// Frees items that no slot holds. (The memory is not given back.)
    fn retire<const N: usize>(&self, items: [*mut Item<Key, u64>; N]) {
        grace_period(&self.world);
        let protected = scan(&self.world);
        for item in items {
            if !protected.contains(item as usize) {
                // SAFETY: never given back.
                Node::free(unsafe { (*item).pair.key.0 });
            }
        }
    }
}

enum Hopped {
    Item(*const Item<Key, u64>),
    Lost,
    End,
}

fn hop(
    record: &Record,
    link: *const Link<Key, u64>,
    slot: &AtomicUsize,
    look: bool,
) -> Result<Hopped, Aborted> {
    arm(record);
    // SAFETY: items are never given back, and loom sees accesses to those that were freed.
    let next = instruction(record, || unsafe { (*link).load(Ordering::Acquire) })? as usize;
    let (found, node) = match next & !MARK {
        _ if look && next & MARK != 0 => (Hopped::Lost, RESERVED),
        0 => (Hopped::End, RESERVED),
        next => (Hopped::Item(next as *const _), next),
    };
    instruction(record, || slot.store(node, Ordering::Release))?;
    disarm(record)?;
    Ok(found)
}

/// The value of a key.
fn search(shared: &Shared, key: u64, look: bool) -> Option<u64> {
    let record = shared.world.registry.claim(1).unwrap();
    let mut slots: [_; 3] = std::array::from_fn(|_| record.slots.reserve());
    let (mut before, mut after) = (null(), null());
    let mut level = shared.list.top();
    let found = loop {
        let link = shared.list.link(before, level);
        match hop(record, link, slots[2], look) {
            Err(Aborted) => {
                thread::yield_now();
                continue;
            }
            Ok(Hopped::Lost) => {
                (before, after, level) = (null(), null(), shared.list.top());
                continue;
            }
            Ok(Hopped::Item(item)) if item == after => (),
            Ok(Hopped::Item(item)) => {
                // SAFETY: as above.
                if unsafe { (*item).pair.key.read() } < key {
                    before = item;
                    slots.swap(0, 2);
                    continue;
                }
                after = item;
                slots.swap(1, 2);
            }
            Ok(Hopped::End) => after = null(),
        }
        if level == 0 {
            // SAFETY: as above.
            break unsafe { after.as_ref() };
        }
        level -= 1;
    };
    let found = found.filter(|item| item.pair.key.read() == key).map(|item| item.pair.value);
    slots.iter().for_each(|slot| slot.store(0, Ordering::Release));
    record.release();
    found
}

/// The same in a plain section.
fn search_plain(shared: &Shared, key: u64) -> Option<u64> {
    let record = shared.world.registry.claim(1).unwrap();
    record.enter();
    light();
    // SAFETY: in a section; items are never given back.
    let found = unsafe { shared.list.find(|k| k.read() < key).after.as_ref() };
    let found = found.filter(|item| item.pair.key.read() == key).map(|item| item.pair.value);
    record.leave();
    record.release();
    found
}

fn run(reader: fn(&Shared), writer: fn(&Shared)) {
    check(2, move || {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || reader(&other));
        writer(&shared);
        thread.join().unwrap();
    });
}

fn remove_two(shared: &Shared) {
    shared.retire([shared.put(1, None), shared.put(2, None)]);
}

fn replace(shared: &Shared) {
    shared.retire([shared.put(2, Some((2, 2)))]);
}

#[test]
fn the_item_before_and_the_one_behind_are_removed() {
    run(|shared| assert_eq!(search(shared, 3, true), Some(1)), remove_two);
}

#[test]
fn the_item_behind_is_removed_first() {
    run(
        |shared| assert_eq!(search(shared, 3, true), Some(1)),
        |shared| shared.retire([shared.put(2, None), shared.put(1, None)]),
    );
}

#[test]
fn a_replaced_key_is_always_there() {
    run(|shared| assert!(matches!(search(shared, 2, true), Some(1 | 2))), replace);
}

#[test]
fn the_key_behind_a_replaced_one_is_always_there() {
    run(
        |shared| assert_eq!(search(shared, 2, true), Some(1)),
        |shared| shared.retire([shared.put(1, Some((2, 1)))]),
    );
}

#[test]
fn in_a_plain_section() {
    run(|shared| assert_eq!(search_plain(shared, 3), Some(1)), remove_two);
    run(|shared| assert!(matches!(search_plain(shared, 2), Some(1 | 2))), replace);
}

#[test]
fn writers_exclude_each_other() {
    check(2, || {
        let shared = Shared::new();
        let other = shared.clone();
        let other = thread::spawn(move || {
            other.put(2, Some((2, 2)));
            other.put(1, None);
        });
        shared.put(3, None);
        shared.put(4, Some((4, 1)));
        other.join().unwrap();
        let found = [1, 2, 3, 4].map(|key| search_plain(&shared, key));
        assert_eq!(found, [None, Some(2), None, Some(4)]);
        assert_eq!(shared.list.len(), 2);
    });
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_no_look_for_the_mark_in_a_link_is_caught() {
    run(|shared| _ = search(shared, 3, false), remove_two);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_replacement_in_two_steps_is_caught() {
    run(
        |shared| assert!(search(shared, 2, true).is_some()),
        |shared| {
            shared.put(2, None);
            shared.put(2, Some((2, 2)));
        },
    );
}
