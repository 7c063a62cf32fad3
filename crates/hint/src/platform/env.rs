// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model's stand-in for the clock, and how its protocols may be broken.

use loom::sync::atomic::{AtomicU32, Ordering};

loom::lazy_static! {
    /// Changed by each thread that waits, read in no order: any of its values may be read at any
    /// time.
    static ref COIN: AtomicU32 = AtomicU32::new(0);
}

pub(crate) fn toss() -> u32 {
    COIN.load(Ordering::Relaxed)
}

/// Twice `wait::FAIR` lies between two of its values.
pub(crate) fn now() -> u64 {
    u64::from(toss()) * 2_000_000
}

/// A wait with an end took some.
pub(crate) fn time_passes() {
    COIN.fetch_add(1, Ordering::Relaxed);
    loom::thread::yield_now();
}

/// How a protocol may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum How {
    SleepsWithoutFence = 1,
    SleepsWithoutTrying,
    WakingNobody,
    HeirNotTakenOut,
    WriterForgetsOthers,
    ReadersForgotten,
    WokenForgetsOthers,
    TurnReadLate,
    TurnKept,
    GhostsCount,
    WritersForgotten,
    DestroyedAtOnce,
    LeavesBeforeSleeping,
    LastWakesNobody,
    SignalsUnseen,
    CancelledKeepsSignal,
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
