// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers a callback: mostly a few plain stores into the thread's buffer; now and then an update
//! of the pending count and a CPU's list, a look at the caps, a wake-up of the worker.

use super::per_cpu_lists::Swept;
use super::reclaimer::Reclaimer;
use super::{limits, worker};
use crate::platform::{facts, rseq, sys};
use crate::thread;
use crate::thread::buffer::{Access, Buffer};
use crate::thread::head::{Function, Head, LEAF};
use crate::thread::load::Load;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A buffer is opened for at most so many callbacks, and so many bytes in units of 16.
const MOST: (u64, u64) = (64, 1 << 16);
/// A buffer is opened for no fewer.
const LEAST: u64 = 4;

impl Reclaimer {
    /// Registers a callback. See `Domain::call_rcu`.
    ///
    /// # Safety
    /// As for `Domain::call_rcu`.
    #[inline]
    pub(crate) unsafe fn register(
        self: &Arc<Reclaimer>,
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
        if let Some(record) = thread::fast_unguarded(self.index()) {
            let mut buffer = record.buffer.enter(false);
            if let Some(buffer) = &mut buffer {
                // SAFETY: as above; the caller keeps it valid.
                if unsafe { buffer.put(head) } {
                    if buffer.has_ready() {
                        run_ready(buffer, 1);
                    }
                    return;
                }
            }
            // SAFETY: as above.
            unsafe { self.register_slow(head, buffer) }
        } else {
            // SAFETY: as above.
            unsafe { self.register_first(head) }
        }
    }

    /// A thread's first registration, or one where there is no membarrier.
    #[cold]
    unsafe fn register_first(self: &Arc<Reclaimer>, head: *mut Head) {
        let mut buffer = self.own_buffer();
        // SAFETY: the caller's promise.
        unsafe {
            if buffer.as_mut().is_none_or(|buffer| !buffer.put(head)) {
                self.register_slow(head, buffer);
            }
        }
    }

    /// This thread's buffer, if it may use it now.
    pub(super) fn own_buffer(&self) -> Option<Access<'static>> {
        // An exiting thread does not take a record again.
        let record = (!thread::exiting()).then(|| thread::unguarded(self.index()));
        record.and_then(|r| r.buffer.enter(facts::fenced()))
    }

    /// The buffer is closed, or too small for this one, or there is none.
    #[cold]
    #[inline(never)]
    unsafe fn register_slow(
        self: &Arc<Reclaimer>,
        head: *mut Head,
        mut buffer: Option<Access<'static>>,
    ) {
        // SAFETY: the head is the caller's alone.
        let (units, leaf) = unsafe { ((*head).units, (*head).flags & LEAF != 0) };
        let first = self.lane_here();
        let mut index = first;
        if let Some(buffer) = &mut buffer {
            self.close_buffer(buffer);
        }
        let load = self.help(&mut buffer, index, leaf);
        let mut n = self.share(units);
        if load_exceeds(load, self.cap()) {
            drop(buffer);
            limits::wait_for_room(self, index);
            // Even if there is no room now: a thread does not wait at each registration.
            buffer = self.own_buffer();
            if let Some(buffer) = &mut buffer {
                // The buffer may be open: a sweeper, or a fork, kept us out above.
                self.close_buffer(buffer);
            }
            index = self.lane_here();
            n = n.min(limits::BEYOND);
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(head, &mut buffer, index, n) };
        drop(buffer);
        if first != index {
            // This thread put callbacks on the first lane's list, or made them ready in the buffer,
            // and the lane's worker may have looked before.
            self.ensure_worker(first);
            self.queues[first].worker.notify();
        }
        let queue = &self.queues[index];
        if self.ensure_worker(index) && self.unserved.noted() {
            self.start_workers();
        }
        queue.worker.notify();
        if worker::full(self.lists.lane(index).pending.here()) {
            queue.worker.hurry();
        }
    }

    /// Helps near the soft cap, or with callbacks of its own, if this thread may. Returns the load.
    fn help(&self, buffer: &mut Option<Access<'static>>, index: usize, leaf: bool) -> Load {
        let load = self.load();
        let over_soft = load_exceeds(load, self.soft_cap());
        if over_soft {
            self.grace.urgency.press();
        }
        let near = load_exceeds(load, &self.soft_cap().help_threshold());
        if let (true, Some(buffer)) = (leaf, buffer) {
            let own = buffer.since_help().callbacks() >= limits::OWN;
            if (near || own) && limits::may_help(self) {
                limits::help(self, buffer, index, over_soft);
                return self.load();
            }
        }
        load
    }

    /// Puts the callback into the buffer, opened for `n` like it, or on a list.
    ///
    /// # Safety
    /// As for [`register`](Reclaimer::register).
    unsafe fn put(
        &self,
        head: *mut Head,
        buffer: &mut Option<Access<'static>>,
        index: usize,
        n: u64,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let units = (*head).units;
            match buffer {
                Some(buffer) if n >= LEAST => {
                    self.lists.open(buffer, index, units, n as u32);
                    let fits = buffer.put(head);
                    debug_assert!(fits);
                }
                Some(buffer) => {
                    buffer.count(Load::one(units));
                    self.lists.push(index, head);
                }
                None => {
                    match thread::existing(self.index()) {
                        Some(record) => self.lists.push_unbuffered(&record.buffer, index, head),
                        None => self.lists.push_late(index, head),
                    };
                }
            }
        }
    }

    /// Closes the buffer: puts its callbacks on the lists.
    pub(super) fn close_buffer(&self, buffer: &mut Access<'_>) {
        let home = buffer.home();
        let (ran, first) = self.lists.close(buffer);
        if ran != 0 {
            self.notice_progress();
        }
        if first {
            let queue = &self.queues[home];
            if !queue.started.load(Ordering::Relaxed) {
                // Not here, inside the buffer: to start a thread takes locks.
                self.unserved.note();
            }
            queue.worker.notify();
        }
    }

    /// For how many callbacks of this size a buffer is opened: for a small part of the soft cap, so
    /// that unused reservations of threads weigh little, and for `MOST.1` units at most.
    fn share(&self, units: u32) -> u64 {
        share(self.soft_cap(), units)
    }

    /// The lane of the CPU that this thread is on.
    fn lane_here(&self) -> usize {
        if self.queues.len() == 1 { 0 } else { current_cpu() % self.queues.len() }
    }

    /// Whether a lane has a worker, started just now if need be.
    pub(crate) fn ensure_worker(self: &Arc<Reclaimer>, index: usize) -> bool {
        let started = &self.queues[index].started;
        if started.load(Ordering::Relaxed) {
            return true;
        }
        // A handler that ends this thread, or forks, does not come in between.
        let _blocked = sys::SignalsBlocked::new();
        if started.swap(true, Ordering::Relaxed) || worker::start(self, index) {
            return true;
        }
        started.store(false, Ordering::Relaxed);
        self.unserved.note();
        false
    }

    /// Empties the buffers of a lane whose owners have not used them since the last call, or all of
    /// its buffers. Does not wait for another sweeper.
    pub(super) fn sweep_lane(&self, index: usize, all: bool) -> Swept {
        self.lists.try_sweep(self.registry(), |buffer| {
            (buffer.home() == index || buffer.abandoned()).then(|| buffer.rests() || all)
        })
    }

    /// Finds callbacks of dead threads, in any lane, and corrects the pending counts. At most once
    /// in a while, and not while another thread sweeps.
    #[cold]
    pub(super) fn recover_from_dead(self: &Arc<Reclaimer>) {
        if self.grace.time_to_look_for_dead() {
            // A handler may fork, and the fork waits for the sweepers' lock.
            let _blocked = sys::SignalsBlocked::new();
            self.grace.forget_dead_owners();
            self.lists.try_sweep(self.registry(), |buffer| buffer.abandoned().then_some(true));
            self.recount();
            self.wake_workers();
        }
    }

    /// Whether a buffer of this lane has callbacks.
    pub(super) fn buffered(&self, index: usize) -> bool {
        let ours = |buffer: &Buffer| buffer.home() == index || buffer.abandoned();
        self.registry().records().any(|r| r.buffer.pending() && ours(&r.buffer))
    }
}

fn share(soft: &limits::Cap, units: u32) -> u64 {
    const PART: u64 = 32;
    let callbacks = (soft.callbacks / PART).min(MOST.0);
    let room = (soft.bytes / 16 / PART).min(MOST.1);
    callbacks.min(room.checked_div(units as u64).unwrap_or(callbacks))
}

/// Runs up to `most` of the callbacks in the buffer that may be run. Returns how many.
pub(super) fn run_ready(buffer: &mut Access<'_>, most: usize) -> usize {
    let thread = thread::this();
    // SAFETY: the block is this thread's own.
    let before = unsafe { std::mem::replace(&mut (*thread).running, buffer.address()) };
    let ran = (0..most).take_while(|_| buffer.run_one()).count();
    // SAFETY: as above.
    unsafe { (*thread).running = before };
    ran
}

pub(super) fn load_exceeds(load: Load, cap: &limits::Cap) -> bool {
    load.bytes() > cap.bytes || load.callbacks() > cap.callbacks
}

fn current_cpu() -> usize {
    match rseq::rseq_cs() {
        Some(cs) => rseq::current_cpu(cs) as usize,
        None => sys::current_cpu().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweeper that has no CPU, for as long as it may be: without `try_sweep` the test hangs.
    #[test]
    fn workers_and_registering_threads_do_not_wait_for_a_sweeper() {
        let domain = crate::Domain::builder().build().unwrap();
        let reclaimer = domain.reclaimer();
        // A fork in another test may be the sweeper.
        while !reclaimer.lists.hold(reclaimer.registry(), None, std::time::Duration::ZERO) {
            std::thread::yield_now();
        }
        assert_eq!(reclaimer.sweep_lane(0, true), Swept::Later);
        reclaimer.lists.lose();
        reclaimer.recount();
        // Recovery is not done more often.
        std::thread::sleep(std::time::Duration::from_millis(101));
        reclaimer.recover_from_dead();
        reclaimer.lists.release(reclaimer.registry());
        domain.barrier().unwrap();
    }

    /// For all caps and sizes, a reservation fits a `Load`, and is no larger than `Cap` says.
    #[test]
    fn reservations_are_bounded() {
        for soft in [limits::Cap::SOFT, limits::Cap::NONE, limits::Cap { bytes: 100, callbacks: 7 }]
        {
            for units in (0..32).map(|bit| 1u32 << bit).chain([0, 3, Load::MOST_UNITS]) {
                let n = share(&soft, units);
                assert!(n <= 64.min(soft.callbacks / 32));
                let load = Load::many(units, n as u32);
                assert!(load.bytes() <= (1 << 20).min(soft.bytes / 32), "{soft:?}: {n} of {units}");
            }
        }
    }
}
