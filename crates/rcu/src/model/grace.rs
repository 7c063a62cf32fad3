// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared and polled grace periods.

use super::tools::{Node, World, check};
use crate::grace::engine::poll::Poll;
use crate::grace::sequence::{GpSeq, Sequence};
use crate::grace::stats;
use crate::platform::barrier::Kind;
use crate::platform::sync::Ordering;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    world: Arc<World>,
    grace: Sequence,
    stats: stats::GraceStats,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            world: World::new(),
            grace: Sequence::new(),
            stats: stats::GraceStats::new(),
        })
    }

    fn run_until(&self, cookie: GpSeq) {
        assert!(self.grace.run_until(
            cookie,
            &self.world.attempt(Kind::Membarrier),
            &Poll,
            &self.stats
        ));
    }

    fn reader(shared: &Arc<Shared>) -> thread::JoinHandle<()> {
        let shared = shared.clone();
        thread::spawn(move || shared.world.read_once(1))
    }
}

#[test]
fn two_requests_share() {
    check(2, || {
        let shared = Shared::new();
        let reader = Shared::reader(&shared);
        let other = shared.clone();
        let other = thread::spawn(move || {
            let old = other.world.replace(2);
            other.run_until(other.grace.cookie());
            Node::free(old);
        });
        let old = shared.world.replace(3);
        shared.run_until(shared.grace.cookie());
        Node::free(old);
        other.join().unwrap();
        reader.join().unwrap();
    });
}

/// A free by a thread that polls and never leads.
fn polled(cookie: fn(&Shared) -> GpSeq) {
    check(3, move || {
        let shared = Shared::new();
        let reader = Shared::reader(&shared);
        let leader = shared.clone();
        let leader = thread::spawn(move || leader.run_until(leader.grace.cookie()));
        let old = shared.world.replace(2);
        let cookie = cookie(&shared);
        let early = shared.grace.done(cookie);
        if early {
            Node::free(old);
        }
        leader.join().unwrap();
        if !early && shared.grace.done(cookie) {
            Node::free(old);
        }
        reader.join().unwrap();
    });
}

#[test]
fn polled_grace_periods() {
    polled(|shared| shared.grace.cookie());
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_cookie_for_a_running_grace_period_is_caught() {
    polled(|shared| {
        let GpSeq(full) = shared.grace.cookie();
        // 2 is the end of the first grace period, whether it runs already or not.
        GpSeq(full.min(2))
    });
}

/// A registering thread makes a grace period of its own while a leader runs one, and does not touch
/// the leader's notes in the records.
fn quick(quick: fn(Kind, &crate::thread::registry::Registry) -> bool) {
    check(3, move || {
        let shared = Shared::new();
        let reader = Shared::reader(&shared);
        let leader = shared.clone();
        let leader = thread::spawn(move || leader.run_until(leader.grace.cookie()));
        let old = shared.world.replace(2);
        if quick(Kind::Membarrier, &shared.world.registry) {
            Node::free(old);
        }
        leader.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn quick_grace_periods() {
    quick(crate::grace::engine::quick);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_quick_grace_period_without_a_barrier_is_caught() {
    quick(|_, registry| registry.records().all(|r| r.outside()));
}

/// A leader that gives up leaves no cookie satisfied.
#[test]
fn giving_up_promises_nothing() {
    struct GivesUp;
    impl crate::grace::engine::GraceEngine for GivesUp {
        fn grace_period(&self, _: &crate::grace::engine::Attempt<'_>) -> bool {
            false
        }
    }
    check(2, || {
        let shared = Shared::new();
        let reader = Shared::reader(&shared);
        let other = shared.clone();
        let other = thread::spawn(move || {
            let attempt = other.world.attempt(Kind::Membarrier);
            other.grace.run_until(other.grace.cookie(), &attempt, &GivesUp, &other.stats);
        });
        let old = shared.world.replace(2);
        let cookie = shared.grace.cookie();
        if shared.grace.done(cookie) {
            Node::free(old);
        } else {
            shared.run_until(cookie);
            Node::free(old);
        }
        other.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn locks_exclude() {
    check(3, || {
        let shared = Arc::new((
            crate::platform::lock::Lock::new(),
            crate::platform::sync::AtomicU32::new(0),
        ));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.0.lock();
                    let n = shared.1.load(Ordering::Relaxed);
                    shared.1.store(n + 1, Ordering::Relaxed);
                    shared.0.unlock();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(shared.1.load(Ordering::Relaxed), 2);
    });
}
