// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a model has in place of the scheduler, the clock and the threads' nodes.

use crate::lock::node::Node;
use crate::platform::fork::epoch;
use crate::platform::sync::{AtomicPtr, AtomicU32, Futex, Ordering};
use crate::thread::Line;
use crate::wait::{Advice, FAIR, HELD};
use std::ptr::null_mut;

loom::lazy_static! {
    /// Changed by each thread that waits, read in no order: any of its values may be read at any
    /// time.
    static ref COIN: AtomicU32 = AtomicU32::new(0);
}

fn toss() -> u32 {
    COIN.load(Ordering::Relaxed)
}

std::thread_local! {
    /// How often a waiting thread looks before it sleeps. All threads of a model are on one of the
    /// system's.
    static LOOKS: std::cell::Cell<u32> = const { std::cell::Cell::new(2) };
}

pub(crate) fn set_looks(looks: u32) {
    LOOKS.set(looks);
}

/// A waiting thread: looks some times, then sleeps.
pub(crate) struct Waiter {
    looks: u32,
}

impl Waiter {
    pub(crate) fn new() -> Waiter {
        Waiter { looks: 0 }
    }

    pub(crate) fn look(&mut self, _: impl FnOnce() -> u32) -> Advice {
        self.looks += 1;
        if self.looks >= LOOKS.get() {
            return Advice::Sleep;
        }
        time_passes();
        Advice::Spin
    }
}

/// Once: the next look is the waiter's.
pub(crate) fn quick(mut taken: impl FnMut() -> bool) -> bool {
    taken()
}

pub(crate) fn spinners() -> u32 {
    1
}

pub(crate) fn now() -> u64 {
    u64::from(toss()) * FAIR * 2
}

/// A wait with an end took some.
pub(crate) fn time_passes() {
    COIN.fetch_add(1, Ordering::Relaxed);
    loom::thread::yield_now();
}

pub(crate) fn runs(_: u32, _: u64) -> bool {
    toss() % 2 == 1
}

pub(crate) fn pass() {
    loom::thread::yield_now();
}

/// Nodes are never freed, as in the real thing.
pub(crate) fn take(line: &Line) -> *mut Node {
    Box::into_raw(Box::new(Node {
        next: AtomicPtr::new(null_mut()),
        state: Futex::new(0),
        who: AtomicU32::new(line.thread.load(Ordering::Relaxed) | HELD),
        epoch: AtomicU32::new(epoch()),
    }))
}

/// A node as a thread of the process that forked this one left it.
#[cfg(test)]
pub(crate) fn ghost(line: &Line) -> *mut Node {
    let node = take(line);
    // SAFETY: made above.
    unsafe { (*node).epoch.store(epoch() - 1, Ordering::Relaxed) };
    node
}

pub(crate) fn give_back(_: *mut Node) {}

/// How a protocol may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum How {
    SleepsWithoutFence = 1,
    SleepsWithoutTrying,
    WakingNobody,
    HeirNotTakenOut,
    PassiveForgotten,
    GrantWithoutWaking,
    ParkedByStore,
    WriterForgetsOthers,
    ReadersForgotten,
    WokenForgetsOthers,
    TurnReadLate,
    TurnKept,
    GhostsCount,
    GhostGranted,
    WritersForgotten,
    DestroyedAtOnce,
    LeavesBeforeSleeping,
    LastWakesNobody,
    DestroyedUnheard,
    CountsFirst,
    EntersUntold,
    LeavesUntold,
    CancelledComesBack,
    BitKept,
    FreedWithBit,
    GivesUpWithBits,
    GivesUpAlone,
}

/// Not a part of the models' state: set once in a process.
static BROKEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

pub(crate) fn break_it(how: How) {
    BROKEN.store(how as u32, std::sync::atomic::Ordering::Relaxed);
}

pub(crate) fn broken(how: How) -> bool {
    BROKEN.load(std::sync::atomic::Ordering::Relaxed) == how as u32
}
