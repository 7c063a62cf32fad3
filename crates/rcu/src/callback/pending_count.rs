// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of waiting callbacks, as the difference of two sums that only grow; and how `barrier`
//! knows that all callbacks have run.
//!
//! Each CPU has a pending count: the callbacks *registered* there, and those *finished* there, on
//! separate cache lines, so that registering and finishing threads do not disturb each other. A
//! callback registered in one CPU's count may be finished in another's: only the sums over all CPUs
//! mean something. Each pending count has two halves, of which the domain's phase chooses one for
//! each registration.
//!
//! > **Invariant.** A callback is added to `registered` before anybody else can find it, and to
//! > `finished`, of the same phase, after it has run. So the sum of `registered` less the sum of
//! > `finished`, *of which the latter is read first*, is at least the number of callbacks of that
//! > phase that wait.
//!
//! For a callback that is read as finished was registered before, and a thread that acquires the
//! addition to `finished` sees the addition to `registered` that came before it. (SRCU sums its
//! unlocks before its locks for the same reason.) A thread may add callbacks to `registered` in
//! advance, and add those that it did not register to `finished` later (`buffer.rs`): the
//! difference is then too large for a while, never too small.
//!
//! `barrier` changes the phase and waits until the old phase's difference is zero, twice. A
//! registration that happened before is in one phase or the other, and each is seen empty once
//! after it. A later registration that read the phase long ago may be in either, and only prolongs
//! the wait.

use crate::platform::sync::{AtomicU32, AtomicU64, Ordering};
use crate::thread::load::Load;

#[repr(align(128))]
struct Line([AtomicU64; 2]);

impl Line {
    fn new() -> Line {
        Line([AtomicU64::new(0), AtomicU64::new(0)])
    }
}

pub(crate) struct PendingCount {
    registered: Line,
    finished: Line,
}

impl PendingCount {
    /// Where the two sums are, for `inspect.rs`.
    #[cfg(not(loom))]
    pub(crate) const REGISTERED: usize = std::mem::offset_of!(PendingCount, registered);
    #[cfg(not(loom))]
    pub(crate) const FINISHED: usize = std::mem::offset_of!(PendingCount, finished);

    pub(crate) fn new() -> PendingCount {
        PendingCount { registered: Line::new(), finished: Line::new() }
    }

    /// Adds callbacks that are registered next, under this phase.
    pub(crate) fn register(&self, phase: usize, load: Load) {
        self.registered.0[phase].fetch_add(load.bits(), Ordering::Relaxed);
    }

    /// Subtracts callbacks of this phase: they have run, or are not registered after all.
    pub(crate) fn finish(&self, phase: usize, load: Load) {
        if load != Load::NONE {
            // Release: pairs with `waiting`, so that `barrier` returns after the callbacks'
            // effects, and the registrations are visible.
            self.finished.0[phase].fetch_add(load.bits(), Ordering::Release);
        }
    }

    /// For a model that reads them in the wrong order.
    #[cfg(all(loom, test))]
    pub(crate) fn sums(&self, phase: usize) -> [&AtomicU64; 2] {
        [&self.registered.0[phase], &self.finished.0[phase]]
    }

    /// In the child of a fork: the callbacks that are really there.
    #[cfg(not(loom))]
    pub(crate) fn set(&self, loads: [Load; 2]) {
        for (phase, load) in loads.into_iter().enumerate() {
            self.registered.0[phase].store(load.bits(), Ordering::Relaxed);
            self.finished.0[phase].store(0, Ordering::Relaxed);
        }
    }

    /// This CPU's own difference: a hint.
    #[cfg(not(loom))]
    pub(crate) fn here(&self) -> Load {
        let sum = |line: &Line| {
            line.0.iter().fold(0u64, |s, l| s.wrapping_add(l.load(Ordering::Relaxed)))
        };
        let difference = sum(&self.registered).wrapping_sub(sum(&self.finished));
        Load::from_bits(if difference as i64 > 0 { difference } else { 0 })
    }
}

fn sum<'a>(lines: impl Iterator<Item = &'a Line>, phases: &[usize]) -> u64 {
    let each = |line: &Line| {
        phases.iter().fold(0, |s: u64, &p| s.wrapping_add(line.0[p].load(Ordering::Acquire)))
    };
    lines.fold(0, |s, line| s.wrapping_add(each(line)))
}

/// At least the waiting callbacks of these phases.
pub(crate) fn waiting<'a>(
    counts: impl Iterator<Item = &'a PendingCount> + Clone,
    phases: &[usize],
) -> Load {
    let finished = sum(counts.clone().map(|a| &a.finished), phases);
    let registered = sum(counts.map(|a| &a.registered), phases);
    Load::from_bits(registered.wrapping_sub(finished))
}

/// The half of the pending counts that registrations use.
pub(crate) struct Phase(AtomicU32);

impl Phase {
    pub(crate) fn new() -> Phase {
        Phase(AtomicU32::new(0))
    }

    pub(crate) fn current(&self) -> usize {
        self.0.load(Ordering::Relaxed) as usize & 1
    }

    /// Returns when the callbacks registered before have run. `drain` waits until no callback of
    /// the phase that it is given waits. One caller at a time.
    pub(crate) fn barrier(&self, mut drain: impl FnMut(usize)) {
        (0..2).for_each(|_| drain(self.change()));
    }

    /// Registrations use the other half from now on, unless they have read the phase
    /// already. Returns the old one.
    pub(crate) fn change(&self) -> usize {
        self.0.fetch_xor(1, Ordering::SeqCst) as usize & 1
    }
}
