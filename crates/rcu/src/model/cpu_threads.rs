// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of visits: the heavy barrier that sleeps, with a reader on the one CPU and the per-CPU
//! thread that visits it.

use super::tools::{Node, World, check};
use crate::grace::cpu_threads::Rounds;
use crate::platform::sync::{Ordering, fence};
use crate::thread::record::Record;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

/// The per-CPU thread runs, so the reader does not: the CPU was switched from one to the other,
/// which is a fence, and the kernel looks where the reader was.
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

/// `cpu_thread` serves one round, or more; the reader has one section or attempt; the leader frees
/// the node that it unlinked.
fn play(reader: fn(&World, &Record), cpu_thread: fn(&Rounds, &Record), leader: fn(&Scene)) {
    check(3, move || {
        let scene = Arc::new(Scene { world: World::new(), rounds: Rounds::new(1) });
        scene.world.registry.claim(1).unwrap();
        let (reads, visits) = (scene.clone(), scene.clone());
        let reads = thread::spawn(move || reader(&reads.world, reads.record()));
        let visits = thread::spawn(move || cpu_thread(&visits.rounds, visits.record()));
        leader(&scene);
        reads.join().unwrap();
        visits.join().unwrap();
    });
}

fn restarts(world: &World, record: &Record) {
    assert_ne!(super::protect::lookup(world, record), u64::MAX);
}

/// Without the light half, which is a fence in models: here nothing but the switch to the per-CPU
/// thread orders the store of the word and the load of the pointer. What runs on one CPU does so
/// one after the other, which the lock stands for.
fn plain(world: &World, record: &Record) {
    fn step<R>(record: &Record, f: impl FnOnce() -> R) -> R {
        let _cpu = record.cpu.lock().unwrap();
        f()
    }
    step(record, || record.enter());
    let node = step(record, || world.load());
    step(record, || assert_ne!(Node::read(node), u64::MAX));
    step(record, || record.leave());
}

fn next_round(rounds: &Rounds, done: u32) -> u32 {
    loop {
        match rounds.current() {
            round if round == done => rounds.sleep(done, Duration::MAX),
            round => return round,
        }
    }
}

/// As `cpu_threads::threads` does it, once.
fn visits(rounds: &Rounds, record: &Record) {
    let round = next_round(rounds, 0);
    switch(record);
    rounds.answer(0, round);
}

/// Until it has answered the second round.
fn visits_twice(rounds: &Rounds, record: &Record) {
    let mut done = 0;
    while done != 2 {
        done = next_round(rounds, done);
        switch(record);
        rounds.answer(0, done);
    }
}

fn free_after(scene: &Scene, old: *mut Node) {
    scene.world.registry.records().for_each(|r| _ = r.look());
    while !scene.world.registry.records().all(|r| r.passed()) {
        thread::yield_now();
    }
    Node::free(old);
}

fn frees(scene: &Scene) {
    let old = scene.world.replace(2);
    let round = scene.rounds.begin();
    assert!(scene.rounds.wait(|| scene.rounds.visited(0, round), || None));
    free_after(scene, old);
}

/// The first round is given up, and may be answered at any time. `accept`: whether an answer will
/// do for the second round.
fn frees_in_the_second_round(scene: &Scene, accept: fn(&Rounds, u32) -> bool) {
    let first = scene.rounds.begin();
    let waited = || Some(Duration::ZERO);
    scene.rounds.wait(|| scene.rounds.visited(0, first), waited);
    let old = scene.world.replace(2);
    let second = scene.rounds.begin();
    assert!(scene.rounds.wait(|| accept(&scene.rounds, second), || None));
    free_after(scene, old);
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
fn late_answers_to_a_round_that_was_given_up() {
    let leader = |scene: &Scene| frees_in_the_second_round(scene, |r, round| r.visited(0, round));
    play(restarts, visits_twice, leader);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_answers_to_any_round_are_caught() {
    let leader = |scene: &Scene| {
        frees_in_the_second_round(scene, |r, round| r.visited(0, round) || r.visited(0, round - 1))
    };
    play(restarts, visits_twice, leader);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_plain_section_without_a_switch_is_caught() {
    let stays = |rounds: &Rounds, _: &Record| rounds.answer(0, next_round(rounds, 0));
    play(plain, stays, frees);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_round_read_after_the_visit_is_caught() {
    let late = |rounds: &Rounds, record: &Record| {
        switch(record);
        rounds.answer(0, next_round(rounds, 0));
    };
    play(restarts, late, frees);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_answer_before_the_visit_is_caught() {
    let early = |rounds: &Rounds, record: &Record| {
        rounds.answer(0, next_round(rounds, 0));
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
