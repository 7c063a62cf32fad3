// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of visits: the heavy barrier that sleeps, with a reader on the one CPU and its visitor.

use super::tools::{Node, World, check};
use crate::barrier::light;
use crate::record::Record;
use crate::sync::{Ordering, fence};
use crate::visit::Rounds;
use loom::sync::Arc;
use loom::thread;

/// The visitor runs, so the reader does not: one is switched to the other, which is a fence, and the kernel looks where the reader was.
fn switch(record: &Record) {
    fence(Ordering::SeqCst);
    record.cpu.lock().unwrap().interrupt();
    fence(Ordering::SeqCst);
}

struct Scene {
    world: Arc<World>,
    rounds: Rounds,
}

impl Scene {
    /// The reader's.
    fn record(&self) -> &Record {
        self.world.registry.records().next().unwrap()
    }
}

/// `visitor` serves one round, or more; a reader that has one section or attempt; the leader frees what it unlinked.
fn play(reader: fn(&World, &Record), visitor: fn(&Rounds, &Record), leader: fn(&Scene)) {
    check(4, move || {
        let scene = Arc::new(Scene { world: World::new(), rounds: Rounds::new(1) });
        scene.world.registry.claim(1).unwrap();
        let (reads, visits) = (scene.clone(), scene.clone());
        let reads = thread::spawn(move || reader(&reads.world, reads.record()));
        let visits = thread::spawn(move || visitor(&visits.rounds, visits.record()));
        leader(&scene);
        reads.join().unwrap();
        visits.join().unwrap();
    });
}

fn restarts(world: &World, record: &Record) {
    assert_ne!(super::protect::lookup(world, record), u64::MAX);
}

fn plain(world: &World, record: &Record) {
    record.enter();
    light();
    assert_ne!(Node::read(world.load()), u64::MAX);
    record.leave();
}

/// As `visit::threads` does it.
fn visits(rounds: &Rounds, record: &Record) {
    let round = loop {
        match rounds.current() {
            0 => rounds.sleep(0),
            round => break round,
        }
    };
    switch(record);
    rounds.answer(0, round);
}

fn frees(scene: &Scene) {
    let old = scene.world.replace(2);
    let round = scene.rounds.begin();
    assert!(scene.rounds.wait(|| scene.rounds.visited(0, round), || None));
    let mut passed = false;
    scene.world.registry.records().for_each(|r| _ = r.look());
    while !passed {
        passed = scene.world.registry.records().all(|r| r.passed());
        thread::yield_now();
    }
    Node::free(old);
}

#[test]
fn a_visit_restarts_sections() {
    play(restarts, visits, frees);
}

#[test]
fn a_visit_is_a_fence_for_plain_sections() {
    play(plain, visits, frees);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_round_read_after_the_visit_is_caught() {
    let late = |rounds: &Rounds, record: &Record| {
        switch(record);
        loop {
            match rounds.current() {
                0 => rounds.sleep(0),
                round => return rounds.answer(0, round),
            }
        }
    };
    play(restarts, late, frees);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_answer_before_the_visit_is_caught() {
    let early = |rounds: &Rounds, record: &Record| {
        loop {
            match rounds.current() {
                0 => rounds.sleep(0),
                round => break rounds.answer(0, round),
            }
        }
        switch(record);
    };
    play(restarts, early, frees);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_round_before_the_unlinking_is_caught() {
    let early = |scene: &Scene| {
        let round = scene.rounds.begin();
        let old = scene.world.replace(2);
        assert!(scene.rounds.wait(|| scene.rounds.visited(0, round), || None));
        Node::free(old);
    };
    play(restarts, visits, early);
}
