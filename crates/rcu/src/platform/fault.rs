// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate faults, in builds with `--cfg reprieve_fault` only: the torture test, or that of
//! visits, must catch each of them, or it proves nothing. `REPRIEVE_FAULT` chooses one.

use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    /// None.
    None = 1,
    /// A grace period without its heavy barrier.
    SkipMembarrier,
    /// Sections are armed before the program is inside the span.
    ArmOutside,
    /// Slots are looked at before the grace period.
    ScanFirst,
    /// A plain section that protects a node is over before the slot is filled.
    FillLate,
    /// A traversal lets its checkpoint go before it starts there.
    LetGo,
    /// Scans and searches do not look whether their checkpoint was unlinked.
    NoLook,
    /// Writers of the ordered map and of the prefix table replace in two steps: what is there goes
    /// before its successor comes.
    TwoSteps,
    /// Leaving a nested section ends the outer one.
    LeaveAll,
    /// Per-CPU threads all go to the first CPU, and say that they have visited their own.
    StayAway,
    /// A CPU that was not visited is not interrupted either.
    SkipOne,
}

static CHOSEN: AtomicU8 = AtomicU8::new(0);

#[cold]
fn choose() -> u8 {
    let fault = match std::env::var("REPRIEVE_FAULT").as_deref() {
        Ok("skip-membarrier") => Fault::SkipMembarrier,
        Ok("arm-outside") => Fault::ArmOutside,
        Ok("scan-first") => Fault::ScanFirst,
        Ok("fill-late") => Fault::FillLate,
        Ok("let-go") => Fault::LetGo,
        Ok("no-look") => Fault::NoLook,
        Ok("two-steps") => Fault::TwoSteps,
        Ok("leave-all") => Fault::LeaveAll,
        Ok("stay-away") => Fault::StayAway,
        Ok("skip-one") => Fault::SkipOne,
        _ => Fault::None,
    };
    CHOSEN.store(fault as u8, Ordering::Relaxed);
    fault as u8
}

#[inline(always)]
pub(crate) fn is(fault: Fault) -> bool {
    CHOSEN.load(Ordering::Relaxed) == fault as u8
}

/// Reads the environment. Called when a process starts to use the crate.
pub(crate) fn init() {
    choose();
}

/// The gap of a fault, widened: long enough for another thread to look into the slots, to move a
/// guard, or to look up.
pub(crate) fn gap() {
    for _ in 0..2000 {
        std::hint::spin_loop();
    }
}
