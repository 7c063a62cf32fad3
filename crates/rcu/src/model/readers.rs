// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain sections, quiescent states, registration and exit, against each engine.

use super::tools::{Node, World, check};
use crate::grace::engine::ltimer::Ltimer;
use crate::grace::engine::poll::Poll;
use crate::grace::engine::sched::Sched;
use crate::grace::engine::{Attempt, GraceEngine};
use crate::platform::barrier::{Kind, light};
use crate::platform::sync::{AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

fn one_reader(engine: fn() -> Box<dyn GraceEngine>, barrier: Kind) {
    check(5, move || {
        let world = World::new();
        let reader = world.clone();
        let reader = thread::spawn(move || {
            let record = reader.registry.claim(1).unwrap();
            reader.section(record);
            // Again: the grace period may have begun in between.
            reader.section(record);
            record.release();
        });
        world.replace_and_free(&*engine(), barrier);
        reader.join().unwrap();
    });
}

#[test]
fn poll() {
    one_reader(|| Box::new(Poll), Kind::Membarrier);
}

#[test]
fn restart() {
    one_reader(|| Box::new(Poll), Kind::Restart);
}

#[test]
fn ltimer() {
    one_reader(|| Box::new(Ltimer { tick: Duration::from_millis(1) }), Kind::Membarrier);
}

#[test]
fn sched() {
    one_reader(|| Box::new(Sched { tick: Duration::from_millis(1) }), Kind::Membarrier);
}

#[test]
fn sched_two_readers() {
    check(3, || {
        let world = World::new();
        let readers: Vec<_> = (1..3)
            .map(|id| {
                let world = world.clone();
                thread::spawn(move || world.read_once(id))
            })
            .collect();
        world.replace_and_free(&Sched { tick: Duration::from_millis(1) }, Kind::Membarrier);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

#[test]
fn nested_sections_end_nothing() {
    check(5, || {
        let world = World::new();
        let reader = world.clone();
        let reader = thread::spawn(move || {
            let record = reader.registry.claim(1).unwrap();
            record.enter();
            light();
            let node = reader.load();
            record.enter();
            light();
            record.leave();
            assert_ne!(Node::read(node), u64::MAX);
            record.leave();
        });
        world.replace_and_free(&Poll, Kind::Membarrier);
        reader.join().unwrap();
    });
}

#[test]
fn quiescent_states() {
    check(5, || {
        let world = World::new();
        let reader = world.clone();
        let reader = thread::spawn(move || {
            let record = reader.registry.claim(1).unwrap();
            record.enter();
            light();
            for _ in 0..2 {
                assert_ne!(Node::read(reader.load()), u64::MAX);
                record.quiesce();
                light();
            }
            assert_ne!(Node::read(reader.load()), u64::MAX);
            record.leave();
        });
        world.replace_and_free(&Poll, Kind::Membarrier);
        reader.join().unwrap();
    });
}

/// Quiescent states as `reprieve.h` announces them: only when a leader waits for the section. No
/// node is freed too early, and the grace period ends: the reader goes on announcing until then.
#[test]
fn quiescent_states_on_demand() {
    check(5, || {
        let world = World::new();
        let ended = Arc::new(AtomicUsize::new(0));
        let (reader, seen) = (world.clone(), ended.clone());
        let reader = thread::spawn(move || {
            let record = reader.registry.claim(1).unwrap();
            record.enter();
            light();
            while seen.load(Ordering::Acquire) == 0 {
                assert_ne!(Node::read(reader.load()), u64::MAX);
                if record.awaited() {
                    record.quiesce();
                    light();
                }
                thread::yield_now();
            }
            assert_ne!(Node::read(reader.load()), u64::MAX);
            record.leave();
        });
        world.replace_and_free(&Poll, Kind::Membarrier);
        ended.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
fn two_threads_register_at_once() {
    check(3, || {
        let world = World::new();
        let readers: Vec<_> = (1..3)
            .map(|id| {
                let world = world.clone();
                thread::spawn(move || {
                    let record = world.registry.claim(id).unwrap();
                    assert_eq!(record.owner(), id);
                    world.section(record);
                    assert_eq!(record.owner(), id);
                    record.release();
                })
            })
            .collect();
        world.replace_and_free(&Poll, Kind::Membarrier);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

#[test]
fn a_record_changes_hands_during_a_grace_period() {
    check(5, || {
        let world = World::new();
        let reader = world.clone();
        let reader = thread::spawn(move || {
            reader.read_once(1);
            // The next owner, most likely of the same record.
            reader.read_once(2);
        });
        world.replace_and_free(&Poll, Kind::Membarrier);
        reader.join().unwrap();
    });
}

#[test]
fn a_thread_exits_inside_a_section() {
    check(5, || {
        let world = World::new();
        let reader = world.clone();
        let reader = thread::spawn(move || {
            let record = reader.registry.claim(1).unwrap();
            record.enter();
            light();
            assert_ne!(Node::read(reader.load()), u64::MAX);
            record.release();
        });
        world.replace_and_free(&Poll, Kind::Membarrier);
        reader.join().unwrap();
    });
}

/// `Poll` without its heavy barrier.
struct NoBarrier;

impl GraceEngine for NoBarrier {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        let mut waiting = false;
        for record in attempt.registry.records() {
            waiting |= record.look();
        }
        while waiting && !attempt.registry.records().all(|r| r.passed()) {
            thread::yield_now();
        }
        true
    }
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_no_barrier_is_caught() {
    one_reader(|| Box::new(NoBarrier), Kind::Membarrier);
}

/// `Poll` that looks at the readers before the barrier.
struct LooksFirst;

impl GraceEngine for LooksFirst {
    fn grace_period(&self, attempt: &Attempt<'_>) -> bool {
        let mut waiting = false;
        for record in attempt.registry.records() {
            waiting |= record.look();
        }
        crate::grace::heavy::interrupt(attempt.barrier, attempt.registry);
        while waiting && !attempt.registry.records().all(|r| r.passed()) {
            thread::yield_now();
        }
        true
    }
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_look_before_barrier_is_caught() {
    one_reader(|| Box::new(LooksFirst), Kind::Membarrier);
}

/// A thread that looks for dead owners finds a record whose owner exits while another thread takes
/// the record. `wary`: it asks whether the first owner is dead after it has seized the record.
fn a_seeker_of_the_dead(wary: bool) {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    check(4, move || {
        let world = World::new();
        let gone = Arc::new(AtomicBool::new(false));
        let first = world.registry.claim(1).unwrap();
        first.enter();
        let seeker = {
            let (world, gone) = (world.clone(), gone.clone());
            thread::spawn(move || {
                let record = world.registry.records().next().unwrap();
                if wary {
                    record.release_if(1, |_| gone.load(Ordering::SeqCst));
                } else if record.owner() == 1 && gone.load(Ordering::SeqCst) {
                    record.release();
                }
            })
        };
        let next = {
            let (world, gone) = (world.clone(), gone.clone());
            thread::spawn(move || {
                // The first exits as it should.
                world.registry.records().next().unwrap().release();
                gone.store(true, Ordering::SeqCst);
                let record = world.registry.claim(2).unwrap();
                world.section(record);
            })
        };
        world.replace_and_free(&Poll, Kind::Membarrier);
        seeker.join().unwrap();
        next.join().unwrap();
    });
}

#[test]
fn the_record_of_a_dead_thread_that_has_released_it_is_left_alone() {
    a_seeker_of_the_dead(true);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_release_without_seizing_is_caught() {
    a_seeker_of_the_dead(false);
}

#[test]
fn a_dead_reader_is_forgotten() {
    check(4, || {
        let world = World::new();
        let record = world.registry.claim(1).unwrap();
        record.enter();
        let grace = {
            let world = world.clone();
            thread::spawn(move || world.replace_and_free(&Poll, Kind::Membarrier))
        };
        assert!(record.release_if(1, |_| true));
        grace.join().unwrap();
        let next = world.registry.claim(2).unwrap();
        assert!(std::ptr::eq(next, record) && next.nesting() == 0);
    });
}
