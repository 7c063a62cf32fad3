// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's slot in the region that a guest's programs share with the guest's host
//! (`hint_region.h`, which also has the layout).
//!
//! The host knows the number of the thread that a vCPU runs, from the guest's kernel, and looks for
//! it in a few slots. So a thread takes one of the [`PROBES`] slots from its number on: its own of
//! before, a free one, or one whose thread has ended. If all are taken, the host does not learn of
//! its hints.
//!
//! > **Invariant.** A thread that lives has one slot at most: whoever takes one for it tries them
//! > in the same order, and is content if another has taken it for the same thread.

use super::{Line, lines_in_use};
use crate::platform::{cpu, sys};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

pub const SLOTS: usize = 8192;
pub const PROBES: usize = 4;

#[repr(C, align(64))]
pub struct Slot {
    pub thread: AtomicU32,
    pub non_preemptable: AtomicU32,
    pub preemptable: AtomicU32,
    pad: [u32; 13],
}

impl Slot {
    /// The slot of thread number `thread`, taken for it. `None`: there is none left for it.
    fn take(slots: &[Slot; SLOTS], thread: u32) -> Option<&Slot> {
        let places = || (0..PROBES).map(|i| &slots[(thread as usize + i) % SLOTS]);
        let slot =
            places().find(|slot| slot.thread.load(Ordering::Relaxed) == thread).or_else(|| {
                places().find(|slot| {
                    let before = slot.thread.load(Ordering::Relaxed);
                    if before != 0 && sys::is_anywhere(before) {
                        return before == thread;
                    }
                    let order = Ordering::AcqRel;
                    let taken =
                        slot.thread.compare_exchange(before, thread, order, Ordering::Relaxed);
                    taken.is_ok() || taken == Err(thread)
                })
            })?;
        // A thread that was killed in a section may have left its counts.
        slot.non_preemptable.store(0, Ordering::Relaxed);
        slot.preemptable.store(0, Ordering::Relaxed);
        Some(slot)
    }
}

/// The slots of the region that is mapped, for good.
static REGION: AtomicPtr<[Slot; SLOTS]> = AtomicPtr::new(std::ptr::null_mut());

/// Publishes the region, and gives a slot to each thread that has a line.
pub(crate) fn offer(slots: &'static [Slot; SLOTS]) {
    REGION.store(std::ptr::from_ref(slots).cast_mut(), Ordering::SeqCst);
    lines_in_use().iter().for_each(give);
}

/// Gives the line's thread a slot, if there is a region and it has none.
pub(super) fn give(line: &Line) {
    // SAFETY: null, or of a region that stays mapped.
    let Some(slots) = (unsafe { REGION.load(Ordering::Acquire).as_ref() }) else { return };
    let thread = line.thread.load(Ordering::SeqCst);
    if thread != 0 && line.slot.load(Ordering::Relaxed).is_null() {
        let slot = Slot::take(slots, thread);
        let slot = slot.map_or(std::ptr::null_mut(), |slot| std::ptr::from_ref(slot).cast_mut());
        line.slot.store(slot, Ordering::Release);
    }
}

impl Line {
    /// Copies the counts into the slot, for the host; and notes where the thread is, for others of
    /// its process. By the line's thread only.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_host(&self) {
        // SAFETY: a slot of a region that stays mapped, or null.
        let Some(slot) = (unsafe { self.slot.load(Ordering::Relaxed).as_ref() }) else { return };
        let (non_preemptable, preemptable) = (&self.non_preemptable, &self.preemptable);
        slot.non_preemptable.store(non_preemptable.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.preemptable.store(preemptable.load(Ordering::Relaxed), Ordering::Relaxed);
        self.cpu.store(cpu::current(), Ordering::Relaxed);
    }
}
