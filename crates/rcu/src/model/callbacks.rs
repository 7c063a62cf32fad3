// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callback lists, and how `barrier` knows that all callbacks have run.

use super::tools::check;
use crate::callback::Head;
use crate::callback::list::{List, Load};
use crate::sync::{AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[repr(C)]
struct Callback {
    head: Head,
    ran: UnsafeCell<u32>,
}

struct Shared {
    list: List,
    phase: AtomicU32,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { list: List::new(), phase: AtomicU32::new(0) })
    }

    /// `call_rcu`.
    fn register(&self) -> *mut Callback {
        let callback =
            Box::into_raw(Box::new(Callback { head: Head::new(), ran: UnsafeCell::new(0) }));
        // SAFETY: fresh, and never given back.
        unsafe { self.list.push(callback.cast(), self.phase.load(Ordering::Relaxed)) };
        callback
    }

    /// A worker's batch; returns how many.
    fn run(&self) -> usize {
        let mut next = self.list.take();
        let mut count = 0;
        while !next.is_null() {
            // SAFETY: ours since `take`.
            let head = unsafe { &*next };
            let (after, phase, load) = (head.next, head.flags as usize & 1, Load::one(head.units));
            // SAFETY: as above; the head is the first field.
            unsafe { (*next.cast::<Callback>()).ran.with_mut(|r| *r += 1) };
            self.list.subtract(phase, load);
            next = after;
            count += 1;
        }
        count
    }

    /// The barrier, running callbacks itself where the real one wakes workers.
    fn barrier(&self, flips: usize) {
        for _ in 0..flips {
            let phase = self.phase.fetch_xor(1, Ordering::SeqCst) as usize & 1;
            while self.list.account(phase).callbacks() != 0 {
                thread::yield_now();
            }
        }
    }
}

/// Times it ran; loom reports it if the run is not ordered before this.
fn ran(callback: *mut Callback) -> u32 {
    // SAFETY: never given back.
    unsafe { (*callback).ran.with(|r| *r) }
}

#[test]
fn each_callback_is_taken_once() {
    check(4, || {
        let shared = Shared::new();
        let pushers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.register() as usize)
            })
            .collect();
        let mut count = shared.run();
        let callbacks: Vec<_> =
            pushers.into_iter().map(|p| p.join().unwrap() as *mut Callback).collect();
        count += shared.run();
        assert_eq!(count, 2);
        assert!(callbacks.into_iter().all(|c| ran(c) == 1));
        assert_eq!(shared.list.account(0).add(shared.list.account(1)), Load::default());
    });
}

#[test]
fn two_workers_take_disjoint_batches() {
    check(4, || {
        let shared = Shared::new();
        let first = shared.register();
        let other = shared.clone();
        let worker = thread::spawn(move || other.run());
        let second = shared.register();
        let mut count = shared.run();
        count += worker.join().unwrap();
        count += shared.run();
        assert_eq!((count, ran(first), ran(second)), (2, 1, 1));
    });
}

#[test]
fn barrier_waits_for_what_was_registered_before() {
    check(4, || {
        let shared = Shared::new();
        let (worker, straggler) = (shared.clone(), shared.clone());
        let callback = shared.register();
        let worker = thread::spawn(move || {
            while worker.run() == 0 {
                thread::yield_now();
            }
            worker.run();
        });
        let straggler = thread::spawn(move || straggler.phase.load(Ordering::Relaxed));
        shared.barrier(2);
        assert_eq!(ran(callback), 1);
        worker.join().unwrap();
        straggler.join().unwrap();
    });
}

/// A registration with a phase read long ago, then two barriers: the second must wait for it, so one change of phase
/// is not enough.
fn stale_phase(flips: usize) {
    check(4, move || {
        let shared = Shared::new();
        let stale = shared.phase.load(Ordering::Relaxed);
        shared.barrier(flips);
        let callback =
            Box::into_raw(Box::new(Callback { head: Head::new(), ran: UnsafeCell::new(0) }));
        // SAFETY: as in `register`.
        unsafe { shared.list.push(callback.cast(), stale) };
        let worker = shared.clone();
        let worker = thread::spawn(move || worker.run());
        shared.barrier(flips);
        assert_eq!(ran(callback), 1);
        worker.join().unwrap();
    });
}

#[test]
fn barrier_sees_a_stale_phase() {
    stale_phase(2);
}

#[test]
#[ignore = "must fail: run by broken_protocols_are_caught"]
fn broken_barrier_with_one_change_of_phase_is_caught() {
    stale_phase(1);
}
