// SPDX-License-Identifier: MIT OR Apache-2.0
//! The restartable section, protection slots, and the reclaimer's order: unlink, grace period,
//! scan.

use super::tools::{Node, World, check};
use crate::grace::heavy;
use crate::platform::barrier::{Kind, light};
use crate::platform::sync::{AtomicUsize, Ordering};
use crate::thread::protected::ProtectedNodes;
use crate::thread::record::Record;
use loom::sync::Arc;
use loom::thread;

/// The thread was sent back to the start of its section.
pub(super) struct Aborted;

/// Runs an instruction inside the section.
pub(super) fn instruction<R>(record: &Record, f: impl FnOnce() -> R) -> Result<R, Aborted> {
    let mut cpu = record.cpu.lock().unwrap();
    if std::mem::take(&mut cpu.interrupted) {
        return Err(Aborted);
    }
    Ok(f())
}

/// The membarrier reaches every thread, known to the registry or not: hence the fence.
pub(super) fn arm(record: &Record) {
    record.cpu.lock().unwrap().armed = true;
    light();
}

pub(super) fn disarm(record: &Record) -> Result<(), Aborted> {
    let mut cpu = record.cpu.lock().unwrap();
    if std::mem::take(&mut cpu.interrupted) {
        return Err(Aborted);
    }
    cpu.armed = false;
    Ok(())
}

/// A lookup that returns a copied value.
pub(super) fn lookup(world: &World, record: &Record) -> u64 {
    let attempt = || {
        arm(record);
        let node = instruction(record, || world.load())?;
        let value = instruction(record, || Node::read(node))?;
        disarm(record)?;
        Ok(value)
    };
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(Aborted) => thread::yield_now(),
        }
    }
}

/// A lookup that fills a slot as its last act.
fn protect(world: &World, record: &Record) -> *mut Node {
    let slot = record.slots.free();
    let attempt = || {
        arm(record);
        let node = instruction(record, || world.load())?;
        instruction(record, || slot.store(node as usize, Ordering::Release))?;
        disarm(record)?;
        Ok(node)
    };
    loop {
        match attempt() {
            Ok(node) => return node,
            Err(Aborted) => thread::yield_now(),
        }
    }
}

/// The fallback: the same in a plain section.
fn protect_plain(world: &World, record: &Record) -> *mut Node {
    let slot = record.slots.free();
    record.enter();
    light();
    let node = world.load();
    slot.store(node as usize, Ordering::Release);
    record.leave();
    node
}

/// A grace period that sends sections back.
pub(super) fn grace_period(world: &World) {
    heavy::interrupt(Kind::Restart, &world.registry);
    while !world.registry.records().fold(true, |passed, r| {
        r.look();
        passed & r.passed()
    }) {
        thread::yield_now();
    }
}

fn reclaim(world: &World) {
    let old = world.replace(2);
    grace_period(world);
    free_unless_protected(world, old);
}

fn free_unless_protected(world: &World, node: *mut Node) {
    if !scan(world).contains(node as usize) {
        Node::free(node);
    }
}

pub(super) fn scan(world: &World) -> ProtectedNodes {
    ProtectedNodes::scan(world.registry.records().map(|r| &r.slots), &world.pool)
}

fn run(reader: fn(&World), reclaimer: fn(&World)) {
    check(5, move || {
        let world = World::new();
        let other = world.clone();
        let thread = thread::spawn(move || reader(&other));
        reclaimer(&world);
        thread.join().unwrap();
    });
}

fn reads(world: &World) {
    let record = world.registry.claim(1).unwrap();
    assert_ne!(lookup(world, record), u64::MAX);
    record.release();
}

fn holds(protect: fn(&World, &Record) -> *mut Node, world: &World) {
    let record = world.registry.claim(1).unwrap();
    let node = protect(world, record);
    assert_ne!(Node::read(node), u64::MAX);
    // Across anything: a section of its own, a block.
    thread::yield_now();
    assert_ne!(Node::read(node), u64::MAX);
    record.slots.clear();
    record.release();
}

#[test]
fn lookups() {
    run(reads, reclaim);
}

#[test]
fn protected_references() {
    run(|world| holds(protect, world), reclaim);
}

#[test]
fn protected_references_from_plain_sections() {
    run(|world| holds(protect_plain, world), reclaim);
}

#[test]
fn several_slots() {
    run(
        |world| {
            let record = world.registry.claim(1).unwrap();
            // The second goes into a block of its own.
            let (first, second) = (protect(world, record), protect(world, record));
            assert_ne!(Node::read(first), u64::MAX);
            assert_ne!(Node::read(second), u64::MAX);
            record.release();
        },
        reclaim,
    );
}

/// A held node is freed once its slot is empty, without another barrier.
#[test]
fn held_nodes_are_freed_later() {
    run(
        |world| holds(protect, world),
        |world| {
            let old = world.replace(2);
            heavy::interrupt(Kind::Restart, &world.registry);
            while scan(world).contains(old as usize) {
                thread::yield_now();
            }
            Node::free(old);
        },
    );
}

#[test]
fn a_record_with_slots_changes_hands() {
    run(
        |world| {
            holds(protect, world);
            holds(protect, world);
        },
        reclaim,
    );
}

/// A guard that moves to the pool, and then goes on in another thread.
fn moves(world: &World, take_over: fn(&World, &AtomicUsize) -> &'static AtomicUsize) {
    let record = world.registry.claim(1).unwrap();
    let node = protect(world, record);
    let slot = take_over(world, record.slots.all().next().unwrap());
    record.release();
    assert_ne!(Node::read(node), u64::MAX);
    slot.store(0, Ordering::Release);
}

#[test]
fn a_guard_moves_to_the_pool() {
    run(|world| moves(world, |world, slot| world.pool.take_over(slot)), reclaim);
}

/// The owner protects another node, in the slot that it has just emptied.
#[test]
fn a_slot_is_filled_again_behind_a_guard_that_moved() {
    run(
        |world| {
            let record = world.registry.claim(1).unwrap();
            let node = protect(world, record);
            let slot = world.pool.take_over(record.slots.all().next().unwrap());
            assert_ne!(Node::read(protect(world, record)), u64::MAX);
            assert_ne!(Node::read(node), u64::MAX);
            slot.store(0, Ordering::Release);
            record.release();
        },
        reclaim,
    );
}

/// A slot of the pool goes from one guard to the next, and the node of the first is freed when a
/// look finds the second's.
#[test]
fn a_slot_of_the_pool_is_taken_again() {
    run(
        |world| {
            let slot = world.pool.fill(8);
            let other = world.pool.fill(16);
            slot.store(0, Ordering::Release);
            moves(world, |world, slot| world.pool.take_over(slot));
            other.store(0, Ordering::Release);
        },
        reclaim,
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_looking_into_the_pool_first_is_caught() {
    run(
        |world| moves(world, |world, slot| world.pool.take_over(slot)),
        |world| {
            let old = world.replace(2);
            heavy::interrupt(Kind::Restart, &world.registry);
            let pool: Vec<_> = world.pool.all().map(|s| s.load(Ordering::Acquire)).collect();
            let threads = world.registry.records().flat_map(|r| r.slots.all());
            let found = ProtectedNodes::look(threads);
            if !pool.contains(&(old as usize)) && !found.contains(old as usize) {
                Node::free(old);
            }
        },
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_emptying_the_first_slot_first_is_caught() {
    run(
        |world| {
            moves(world, |world, slot| {
                let node = slot.load(Ordering::Relaxed);
                slot.store(0, Ordering::Release);
                world.pool.fill(node)
            });
        },
        reclaim,
    );
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_no_membarrier_is_caught() {
    run(|world| holds(protect, world), |world| free_unless_protected(world, world.replace(2)));
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_scan_before_membarrier_is_caught() {
    run(
        |world| holds(protect, world),
        |world| {
            let old = world.replace(2);
            let protected = scan(world);
            heavy::interrupt(Kind::Restart, &world.registry);
            if !protected.contains(old as usize) {
                Node::free(old);
            }
        },
    );
}

/// Armed before the program is inside: a preemption in the gap disarms, and the section goes on
/// unprotected.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_arming_outside_is_caught() {
    run(
        |world| {
            let record = world.registry.claim(1).unwrap();
            arm(record);
            // The kernel does this when it finds the descriptor armed and the program outside its
            // span.
            record.cpu.lock().unwrap().armed = false;
            let attempt = || {
                let node = instruction(record, || world.load())?;
                let value = instruction(record, || Node::read(node))?;
                disarm(record)?;
                Ok::<u64, Aborted>(value)
            };
            if let Ok(value) = attempt() {
                assert_ne!(value, u64::MAX);
            }
        },
        reclaim,
    );
}

/// The slot is filled after the section instead of as its last act.
#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_filling_outside_is_caught() {
    run(
        |world| {
            holds(
                |world, record| {
                    let attempt = || {
                        arm(record);
                        let node = instruction(record, || world.load())?;
                        disarm(record)?;
                        Ok::<*mut Node, Aborted>(node)
                    };
                    let node = attempt().unwrap_or_else(|_| protect(world, record));
                    record.slots.free().store(node as usize, Ordering::SeqCst);
                    node
                },
                world,
            );
        },
        reclaim,
    );
}

#[test]
fn nothing_is_shared_between_worlds() {
    check(1, || {
        let world: Arc<World> = World::new();
        assert_eq!(world.registry.records().count(), 0);
        world.registry.claim(1).unwrap();
        assert_eq!(world.registry.records().count(), 1);
    });
}
