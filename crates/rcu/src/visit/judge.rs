// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the membarrier spins on this machine, now.
//!
//! Wall-clock time does not tell: the caller may have lost its CPU in the call, and was not spinning then. Its CPU time does, but asking for it is a system
//! call of its own. So a call that took long makes the next ones be measured in CPU time; [`ROW`] of those that took long in a row
//! make [`visits`] say yes for a while. Then one call is tried again; each time it still spins, the while is twice as long.

use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// An interrupt and its answer take some microseconds; with a hypervisor that has to help, tens.
const LONG: Duration = Duration::from_micros(500);
const ROW: u32 = 3;
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(8);

/// As far as `REPRIEVE_BARRIER` does not say.
const FREE: u32 = 0;
const VISIT: u32 = 1;
const INTERRUPT: u32 = 2;
static FORCED: AtomicU32 = AtomicU32::new(FREE);

/// CPU time is measured.
static SUSPECT: AtomicBool = AtomicBool::new(false);
/// Calls in a row that spun.
static SPUN: AtomicU32 = AtomicU32::new(0);
/// Until then visits are cheaper, in nanoseconds of the monotonic clock.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// How long the next while is, in nanoseconds.
static SPAN: AtomicU64 = AtomicU64::new(FIRST.as_nanos() as u64);

/// `REPRIEVE_BARRIER=visit` or `=interrupt`.
pub(crate) fn force(visit: bool, interrupt: bool) {
    let forced = if visit {
        VISIT
    } else if interrupt {
        INTERRUPT
    } else {
        FREE
    };
    FORCED.store(forced, Ordering::Relaxed);
}

/// Whether to visit. For a leader: some say so now and then who then race, which does not matter.
pub(crate) fn visits() -> bool {
    match FORCED.load(Ordering::Relaxed) {
        FREE => {
            let until = UNTIL.load(Ordering::Relaxed);
            until != 0 && now() < until
        }
        forced => forced == VISIT,
    }
}

/// Makes a call, and sees whether it spins.
pub(crate) fn watch(membarrier: impl FnOnce()) {
    if SUSPECT.load(Ordering::Relaxed) {
        let before = sys::own_cpu_time();
        membarrier();
        return judge(sys::own_cpu_time().saturating_sub(before) > LONG);
    }
    let before = sys::monotonic();
    membarrier();
    if sys::monotonic().saturating_sub(before) > LONG {
        SUSPECT.store(true, Ordering::Relaxed);
    }
}

fn judge(spun: bool) {
    if !spun {
        SUSPECT.store(false, Ordering::Relaxed);
        SPUN.store(0, Ordering::Relaxed);
        SPAN.store(FIRST.as_nanos() as u64, Ordering::Relaxed);
    } else if SPUN.fetch_add(1, Ordering::Relaxed) + 1 >= ROW {
        // One that spins will do next time.
        SPUN.store(ROW - 1, Ordering::Relaxed);
        let span = SPAN.load(Ordering::Relaxed);
        SPAN.store((span * 2).min(LAST.as_nanos() as u64), Ordering::Relaxed);
        UNTIL.store(now() + span, Ordering::Relaxed);
    }
}

fn now() -> u64 {
    sys::monotonic().as_nanos() as u64
}
