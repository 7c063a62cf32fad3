// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trie under the prefix table: lookups in one section each, against updates that put forks in
//! and take them out. A freed node has links that no reader may follow, and a route's value is a
//! node of the model, so that a lookup that stops at a freed route is noticed.

use super::protect::{Aborted, arm, disarm, grace_period, instruction, scan};
use super::tools::{Node, World, check};
use crate::platform::barrier::light;
use crate::platform::sync::{AtomicPtr, Ordering};
use crate::structures::prefix::trie::{self, Key, Removed, Route, Trie};
use crate::thread::record::Record;
use loom::sync::Arc;
use loom::thread;
use std::ptr::{null, null_mut};

struct Value(*mut Node);

struct Shared {
    world: Arc<World>,
    trie: Trie<Value>,
}

// SAFETY: the pointers lead to nodes of the model, whose accesses loom checks.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

type Link = AtomicPtr<trie::Node>;

/// In the links of a freed node.
const FREED: *mut trie::Node = std::ptr::without_provenance_mut(8);

/// Prefixes by the bits that they have. `ONE` covers the two others, and is where they fork.
const ONE: (u64, u32) = (1 << 63, 1);
const ONE_ZERO: (u64, u32) = (1 << 63, 2);
const ONE_ONE: (u64, u32) = (3 << 62, 2);

fn key((bits, length): (u64, u32)) -> Key {
    Key::new([bits, 0], length)
}

impl Shared {
    /// Routes of those prefixes, all with the value 1.
    fn new(prefixes: &[(u64, u32)]) -> Arc<Shared> {
        let shared = Shared { world: World::new(), trie: Trie::new() };
        prefixes.iter().for_each(|prefix| _ = shared.insert(*prefix, 1));
        Arc::new(shared)
    }

    fn insert(&self, prefix: (u64, u32), value: u64) -> Removed<Value> {
        // SAFETY: fresh.
        unsafe { self.trie.insert(Route::allocate(key(prefix), Value(Node::make(value)))) }
    }

    fn remove(&self, prefix: (u64, u32)) -> Removed<Value> {
        self.trie.remove(&key(prefix))
    }

    /// Frees what no slot holds.
    fn retire(&self, removed: Removed<Value>) {
        grace_period(&self.world);
        let protected = scan(&self.world);
        for node in [removed.route.cast(), removed.fork] {
            if !node.is_null() && !protected.contains(node as usize) {
                free(node);
            }
        }
    }
}

/// Poisons a node. (The memory is not given back.)
fn free(node: *mut trie::Node) {
    // SAFETY: never given back; loom reports accesses that are not ordered before these.
    unsafe {
        for link in &mut (*node).children {
            link.with_mut(|link| *link = FREED);
        }
        if (*node).route != 0 {
            Node::free((*node.cast::<Route<Value>>()).value.0);
        }
    }
}

/// The node of the longest prefix that matches, or null. `load` follows a link.
fn longest(trie: &Trie<Value>, address: u64, load: Load<'_>) -> Result<*const trie::Node, Aborted> {
    let address = Key::new([address, 0], 128);
    let (mut link, mut best) = (&trie.root, null());
    loop {
        let node = load(link)?;
        assert_ne!(node, FREED);
        // SAFETY: as in `free`; prefixes do not change.
        let Some(there) = (unsafe { node.as_ref() }) else { break };
        if there.key.common(&address) < there.key.length {
            break;
        }
        if there.route != 0 {
            best = node;
        }
        link = &there.children[there.key.side(&address)];
    }
    Ok(best)
}

/// The first route, as a scan finds it: a fork has two children.
fn first(trie: &Trie<Value>, load: Load<'_>) -> Result<*const trie::Node, Aborted> {
    let mut node = load(&trie.root)?;
    loop {
        assert_ne!(node, FREED);
        // SAFETY: as above.
        match unsafe { node.as_ref() } {
            Some(fork) if fork.route == 0 => {
                node = load(&fork.children[0])?;
                assert!(!node.is_null());
            }
            _ => return Ok(node),
        }
    }
}

fn follow(link: &Link) -> *mut trie::Node {
    link.load(Ordering::Acquire)
}

/// The value of a route that is protected.
fn value(node: *const trie::Node) -> Option<u64> {
    // SAFETY: as above; a route.
    let value = (!node.is_null()).then(|| unsafe { (*node.cast::<Route<Value>>()).value.0 });
    value.map(|value| {
        let value = Node::read(value);
        assert_ne!(value, u64::MAX);
        value
    })
}

type Load<'a> = &'a (dyn Fn(&Link) -> Result<*mut trie::Node, Aborted> + 'a);
type Find<'a> = &'a (dyn Fn(Load<'_>) -> Result<*const trie::Node, Aborted> + 'a);

/// A restartable lookup, whose last act protects the route.
fn protect(record: &Record, find: Find<'_>) -> Option<u64> {
    let slot = record.slots.free();
    let attempt = || {
        arm(record);
        let node = find(&|link| instruction(record, || follow(link)))?;
        instruction(record, || slot.store(node as usize, Ordering::Release))?;
        disarm(record)?;
        Ok::<_, Aborted>(node)
    };
    loop {
        match attempt() {
            Ok(node) => return value(node),
            Err(Aborted) => thread::yield_now(),
        }
    }
}

/// The same in a plain section.
fn protect_plain(record: &Record, find: Find<'_>) -> Option<u64> {
    record.enter();
    light();
    let node = find(&|link| Ok(follow(link))).unwrap_or(null_mut());
    record.slots.free().store(node as usize, Ordering::Release);
    record.leave();
    value(node)
}

fn reader(
    shared: &Shared,
    protect: fn(&Record, Find<'_>) -> Option<u64>,
    find: Find<'_>,
) -> Option<u64> {
    let record = shared.world.registry.claim(1).unwrap();
    let found = protect(record, find);
    record.slots.clear();
    record.release();
    found
}

fn look_up(shared: &Shared, (address, _): (u64, u32)) -> Option<u64> {
    reader(shared, protect, &|load| longest(&shared.trie, address, load))
}

fn run(prefixes: &'static [(u64, u32)], reader: fn(&Shared), writer: fn(&Shared)) {
    check(2, move || {
        let shared = Shared::new(prefixes);
        let other = shared.clone();
        let thread = thread::spawn(move || reader(&other));
        writer(&shared);
        thread.join().unwrap();
    });
}

const FORKED: &[(u64, u32)] = &[ONE_ZERO, ONE_ONE];
const ALL: &[(u64, u32)] = &[ONE, ONE_ZERO, ONE_ONE];

fn finds_one_one(shared: &Shared) {
    assert_eq!(look_up(shared, ONE_ONE), Some(1));
}

#[test]
fn a_fork_goes_with_a_child_and_hides_not_the_other() {
    run(FORKED, finds_one_one, |shared| shared.retire(shared.remove(ONE_ZERO)));
}

#[test]
fn both_children_of_a_fork_go() {
    run(
        FORKED,
        |shared| assert!(matches!(look_up(shared, ONE_ONE), Some(1) | None)),
        |shared| {
            shared.retire(shared.remove(ONE_ZERO));
            shared.retire(shared.remove(ONE_ONE));
        },
    );
}

#[test]
fn a_fork_comes_and_hides_nothing() {
    run(&[ONE_ONE], finds_one_one, |shared| shared.retire(shared.insert(ONE_ZERO, 1)));
}

#[test]
fn a_route_takes_the_place_of_a_fork() {
    run(FORKED, finds_one_one, |shared| shared.retire(shared.insert(ONE, 1)));
}

#[test]
fn a_fork_takes_the_place_of_a_route() {
    run(ALL, finds_one_one, |shared| shared.retire(shared.remove(ONE)));
}

#[test]
fn a_shorter_prefix_matches_while_the_longer_one_goes() {
    run(
        ALL,
        |shared| assert_eq!(look_up(shared, ONE_ZERO), Some(1)),
        |shared| shared.retire(shared.remove(ONE_ZERO)),
    );
}

#[test]
fn a_replaced_route_is_always_there() {
    run(
        FORKED,
        |shared| assert!(matches!(look_up(shared, ONE_ONE), Some(1 | 2))),
        |shared| shared.retire(shared.insert(ONE_ONE, 2)),
    );
}

#[test]
fn a_scan_finds_a_first_route() {
    run(
        FORKED,
        |shared| {
            let found = reader(shared, protect, &|load| first(&shared.trie, load));
            assert_eq!(found, Some(1));
        },
        |shared| shared.retire(shared.remove(ONE_ZERO)),
    );
}

#[test]
fn in_a_plain_section() {
    run(
        FORKED,
        |shared| {
            let longest: Find<'_> = &|load| longest(&shared.trie, ONE_ONE.0, load);
            assert_eq!(reader(shared, protect_plain, longest), Some(1));
        },
        |shared| shared.retire(shared.remove(ONE_ZERO)),
    );
}

#[test]
fn writers_exclude_each_other() {
    check(2, || {
        let shared = Shared::new(FORKED);
        let other = shared.clone();
        let other = thread::spawn(move || {
            other.remove(ONE_ZERO);
        });
        shared.insert(ONE, 2);
        other.join().unwrap();
        assert_eq!([ONE_ZERO, ONE_ONE].map(|p| look_up(&shared, p)), [Some(2), Some(1)]);
        assert_eq!(shared.trie.len(), 2);
    });
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_free_of_a_fork_without_a_grace_period_is_caught() {
    run(FORKED, |shared| _ = look_up(shared, ONE_ONE), |shared| free(shared.remove(ONE_ZERO).fork));
}

/// A lookup that goes on, in a second section, from a node that it found in the first.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_lookup_in_two_sections_is_caught() {
    run(
        FORKED,
        |shared| {
            let record = shared.world.registry.claim(1).unwrap();
            arm(record);
            let root = instruction(record, || follow(&shared.trie.root));
            if disarm(record).is_err() {
                return;
            }
            // SAFETY: as above.
            if let Some(fork) = root.ok().and_then(|root| unsafe { root.as_ref() }) {
                let second: Find<'_> = &|load| {
                    let node = load(&fork.children[1])?;
                    assert_ne!(node, FREED);
                    Ok(node)
                };
                protect(record, second);
            }
        },
        |shared| {
            shared.retire(shared.remove(ONE_ZERO));
            shared.retire(shared.remove(ONE_ONE));
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_fork_of_one_child_is_caught() {
    run(
        FORKED,
        |shared| _ = reader(shared, protect, &|load| first(&shared.trie, load)),
        |shared| {
            // SAFETY: as above.
            let fork = unsafe { &*shared.trie.root.load(Ordering::Relaxed) };
            fork.children[0].store(null_mut(), Ordering::Release);
            shared.trie.root.store(fork.children[1].load(Ordering::Relaxed), Ordering::Release);
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_replacement_in_two_steps_is_caught() {
    run(
        FORKED,
        |shared| assert!(look_up(shared, ONE_ONE).is_some()),
        |shared| {
            shared.remove(ONE_ONE);
            shared.insert(ONE_ONE, 2);
        },
    );
}
