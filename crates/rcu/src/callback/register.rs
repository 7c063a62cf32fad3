// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering a callback: into the thread's stash, a few plain stores; now and then, the account, the list, the worker, the caps.

use super::intake::Swept;
use super::load::Load;
use super::stash::{Access, Stash};
use super::{Function, Head, LEAF, cap, worker};
use crate::domain::core::Core;
use crate::restart::arch;
use crate::{startup, sys, thread};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most callbacks that a stash is opened for, and most bytes in units of 16.
const MOST: (u64, u64) = (64, 1 << 16);
/// A stash for fewer is not worth it.
const LEAST: u64 = 4;

impl Core {
    /// Registers a callback. See `Domain::call_rcu`.
    #[inline]
    pub(crate) unsafe fn register(
        self: &Arc<Core>,
        head: *mut Head,
        function: Function,
        node: usize,
        bytes: usize,
        flags: u32,
    ) {
        let units = bytes.div_ceil(16).min(Load::MOST_UNITS as usize) as u32;
        // SAFETY: the head is the caller's alone.
        unsafe {
            head.write(Head { next: null_mut(), function: Some(function), node, units, flags })
        };
        if let Some(record) = thread::fast(self.index()) {
            let mut stash = record.stash.enter(false);
            if let Some(stash) = &mut stash {
                // SAFETY: as above; the caller keeps it valid.
                if unsafe { stash.put(head) } {
                    if stash.has_ready() {
                        run_ready(stash, 1);
                    }
                    return;
                }
            }
            // SAFETY: as above.
            unsafe { self.register_slow(head, stash) }
        } else {
            // SAFETY: as above.
            unsafe { self.register_first(head) }
        }
    }

    /// A thread's first registration, or one where there is no membarrier.
    #[cold]
    unsafe fn register_first(self: &Arc<Core>, head: *mut Head) {
        let mut stash = self.own_stash();
        // SAFETY: the caller's promise.
        unsafe {
            if stash.as_mut().is_none_or(|stash| !stash.put(head)) {
                self.register_slow(head, stash);
            }
        }
    }

    /// This thread's stash, if it may use it now.
    pub(super) fn own_stash(&self) -> Option<Access<'static>> {
        // A record is not taken again by a thread that exits.
        let record = if thread::exiting() { None } else { Some(thread::record(self.index())) };
        record.and_then(|r| r.stash.enter(startup::fenced()))
    }

    /// The stash is closed, or too small for this one, or there is none.
    #[cold]
    #[inline(never)]
    unsafe fn register_slow(self: &Arc<Core>, head: *mut Head, mut stash: Option<Access<'static>>) {
        // SAFETY: the head is the caller's alone.
        let (units, leaf) = unsafe { ((*head).units, (*head).flags & LEAF != 0) };
        let mut index = self.lane_here();
        if let Some(stash) = &mut stash {
            self.close_stash(stash);
        }
        let mut load = self.load();
        let over_soft = load_exceeds(load, self.soft_cap());
        if over_soft {
            self.grace.urgency.press();
        }
        if leaf && load_exceeds(load, &self.soft_cap().most()) && cap::may_help(self) {
            if let Some(stash) = &mut stash {
                cap::help(self, stash, index, over_soft);
                load = self.load();
            }
        }
        let mut n = self.share(units);
        if load_exceeds(load, self.cap()) {
            drop(stash);
            cap::relieve(self, index);
            // Whether or not there is room now: nobody waits for every single callback.
            stash = self.own_stash();
            if let Some(stash) = &mut stash {
                // It may be open: a sweeper, or a fork, kept us out of it above.
                self.close_stash(stash);
            }
            // What is on the first lane (its list, or what is ready in the stash) is there by our doing, and its worker may have looked meanwhile.
            let first = std::mem::replace(&mut index, self.lane_here());
            if first != index {
                self.queues[first].alarm.work();
            }
            n = n.min(cap::BEYOND);
        }
        // SAFETY: the caller's promise.
        unsafe {
            match &mut stash {
                Some(stash) if n >= LEAST => {
                    self.intake.open(stash, index, units, n as u32);
                    let fits = stash.put(head);
                    debug_assert!(fits);
                }
                Some(stash) => {
                    stash.count(Load::one(units));
                    self.intake.push(index, head);
                }
                None => {
                    match thread::existing(self.index()) {
                        Some(record) => self.intake.push_beside(&record.stash, index, head),
                        None => self.intake.push_late(index, head),
                    };
                }
            }
        }
        drop(stash);
        let queue = &self.queues[index];
        self.ensure_worker(index);
        queue.alarm.work();
        if worker::full(self.intake.lane(index).account.here()) {
            queue.alarm.enough();
        }
    }

    /// What is in the stash goes to the lists.
    pub(super) fn close_stash(&self, stash: &mut Access<'_>) {
        let home = stash.home();
        let (ran, first) = self.intake.close(stash);
        if ran != 0 {
            self.callbacks.run.fetch_add(ran, Ordering::Relaxed);
            self.notice_progress();
        }
        if first {
            self.queues[home].alarm.work();
        }
    }

    /// How many callbacks of that size a stash is opened for: a small part of the soft cap, so that what threads have reserved and do not
    /// use weighs little. Of any size, they are no more than `MOST.1` units in all.
    fn share(&self, units: u32) -> u64 {
        share(self.soft_cap(), units)
    }

    /// The lane of the CPU that this thread is on.
    fn lane_here(&self) -> usize {
        if self.queues.len() == 1 { 0 } else { current_cpu() % self.queues.len() }
    }

    pub(crate) fn ensure_worker(self: &Arc<Core>, index: usize) {
        let started = &self.queues[index].started;
        if started.load(Ordering::Relaxed) {
            return;
        }
        // A handler that ends this thread, or forks, does not come in between.
        let _blocked = sys::SignalsBlocked::new();
        if !started.swap(true, Ordering::Relaxed) && !worker::start(self, index) {
            started.store(false, Ordering::Relaxed);
        }
    }

    /// Empties stashes of that lane whose owners have left them alone since the last look, or all.
    pub(super) fn sweep_lane(&self, index: usize, all: bool) -> Swept {
        self.intake.sweep(self.registry(), |stash| {
            (stash.home() == index || stash.abandoned()).then(|| stash.rests() || all)
        })
    }

    /// Finds what dead threads have left, whose home may be anywhere, and puts the accounts right. At most once in a while.
    #[cold]
    pub(super) fn seek_lost(&self) {
        if self.seeking_now() {
            self.forget_dead_owners();
            self.intake.sweep(self.registry(), |stash| stash.abandoned().then_some(true));
            self.audit();
            self.wake_workers();
        }
    }

    /// Whether there is a stash of that lane with something in it.
    pub(super) fn stashed(&self, index: usize) -> bool {
        let ours = |stash: &Stash| stash.home() == index || stash.abandoned();
        self.registry().records().any(|r| r.stash.pending() && ours(&r.stash))
    }
}

fn share(soft: &cap::Cap, units: u32) -> u64 {
    const PART: u64 = 32;
    let callbacks = (soft.callbacks / PART).min(MOST.0);
    let room = (soft.bytes / 16 / PART).min(MOST.1);
    callbacks.min(room.checked_div(units as u64).unwrap_or(callbacks))
}

/// Runs up to `most` of the callbacks in the stash that may be run. Returns how many.
pub(super) fn run_ready(stash: &mut Access<'_>, most: usize) -> usize {
    let thread = thread::this();
    // SAFETY: the block is this thread's own.
    let before = unsafe { std::mem::replace(&mut (*thread).running, stash.address()) };
    let ran = (0..most).take_while(|_| stash.run_one()).count();
    // SAFETY: as above.
    unsafe { (*thread).running = before };
    ran
}

pub(super) fn load_exceeds(load: Load, cap: &cap::Cap) -> bool {
    load.bytes() > cap.bytes || load.callbacks() > cap.callbacks
}

fn current_cpu() -> usize {
    match arch::rseq_cs() {
        Some(cs) => arch::current_cpu(cs) as usize,
        None => sys::current_cpu().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stash is opened for fits a `Load`, whatever the caps and the sizes, and is what `Cap` says.
    #[test]
    fn reservations_are_bounded() {
        for soft in [cap::Cap::SOFT, cap::Cap::NONE, cap::Cap { bytes: 100, callbacks: 7 }] {
            for units in (0..32).map(|bit| 1u32 << bit).chain([0, 3, Load::MOST_UNITS]) {
                let n = share(&soft, units);
                assert!(n <= 64.min(soft.callbacks / 32));
                let load = Load::many(units, n as u32);
                assert!(load.bytes() <= (1 << 20).min(soft.bytes / 32), "{soft:?}: {n} of {units}");
            }
        }
    }
}
