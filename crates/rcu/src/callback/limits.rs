// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two caps on waiting callbacks, and what a registration does when one is exceeded.
//!
//! - **Below the soft cap** it does nothing: a worker will come.
//! - **Near it**, or after [`OWN`] registrations, a thread that registers a mere free *helps*, if
//!   that is quick. It takes the mere frees from the list of its CPU, makes a grace period of its
//!   own (one membarrier, and a look that finds no reader inside a plain section), and keeps them
//!   in its buffer. From then on it frees one at each registration, so its allocator hands out
//!   memory that was just freed. **Above it** the thread frees all that it has kept at once, and
//!   the workers do not let batches gather any more. If the last grace periods were not quick
//!   (plain sections hold them up, or the membarrier waits for virtual CPUs that do not run) it
//!   leaves everything to the workers: below the cap no registration waits for a reader.
//! - **Above the cap** a registration waits until enough callbacks have run, at most [`LONGEST`]
//!   besides its own work. Few of the waiting threads are woken at a time: each registers until the
//!   cap is reached again.
//!
//! Why two: garbage that only waits for a thread to free it is best kept small, since memory that
//! is freed soon is still in the cache. Garbage that waits for a preempted reader piles up at the
//! rate of the updates times tens of milliseconds. A cap below that saves little memory, and makes
//! all writers wait for each preemption of a reader.

use super::reclaimer::Reclaimer;
use super::register::{load_exceeds, run_ready};
use crate::platform::Instant;
use crate::platform::cancel::CancelDisabled;
use crate::thread::buffer::Access;
use crate::thread::list::Chain;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An amount of waiting callbacks. `u64::MAX` is no limit. Callbacks that wait for
/// [`Protected`](crate::Protected) guards only do not count: nobody but the guards' owners can
/// help.
///
/// How exact it is: a thread compares the load with the cap, then reserves room for several
/// callbacks: 64 at most, and at most 1/32 of the soft cap and 1 MiB in all. Threads that compare
/// at the same moment may exceed the cap by one reservation each: with the default soft cap by 2
/// MiB in 64 threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Bytes announced by the registrations.
    pub bytes: u64,
    /// Callbacks.
    pub callbacks: u64,
}

impl Cap {
    /// Nothing is limited.
    pub const NONE: Cap = Cap { bytes: u64::MAX, callbacks: u64::MAX };

    /// The soft cap's default: 1 MiB, 16,384 callbacks. With more, cold caches cost more than large
    /// batches save.
    pub const SOFT: Cap = Cap { bytes: 1 << 20, callbacks: 1 << 14 };

    pub(crate) fn min(self, other: Cap) -> Cap {
        Cap { bytes: self.bytes.min(other.bytes), callbacks: self.callbacks.min(other.callbacks) }
    }

    /// The load from which on registering threads help: 7/8 of it.
    pub(super) fn help_threshold(self) -> Cap {
        let most = |n| n - n / 8;
        Cap { bytes: most(self.bytes), callbacks: most(self.callbacks) }
    }

    /// A part of it.
    fn part(self, of: u64) -> Cap {
        Cap { bytes: self.bytes / of, callbacks: self.callbacks / of }
    }
}

impl Default for Cap {
    /// 64 MiB, 1,048,576 callbacks: more than twice the garbage that a thread which updates without
    /// a pause makes while a busy machine keeps a plain reader preempted (some 70 ms with 16
    /// threads for two CPUs). With restartable readers only, the load stays near the soft cap.
    fn default() -> Cap {
        Cap { bytes: 64 << 20, callbacks: 1 << 20 }
    }
}

/// Longest time for which one registration waits for room, or begins to help. It finishes what it
/// has begun: a membarrier, which takes as long as the slowest CPU takes to answer; the look at the
/// readers; and the mere frees that are ready, of one CPU or of a batch.
const LONGEST: Duration = Duration::from_millis(20);

/// A thread that has registered so many since it helped last frees its own nodes, whatever the
/// load. Its allocator finds them again while they are in the cache; a worker would free them from
/// another thread.
pub(super) const OWN: u64 = 1024;

/// Callbacks that a thread may register after it has waited that long, before it waits again.
pub(super) const BEYOND: u64 = 32;

/// Whether this thread may make a grace period and run mere frees.
pub(super) fn may_help(reclaimer: &Reclaimer) -> bool {
    reclaimer.grace.quick() && !reclaimer.grace.in_section() && !crate::thread::in_callback()
}

/// Near the soft cap or `over` it: makes the mere frees on the CPU's list ready; over it runs all
/// that are ready. The buffer is closed.
pub(super) fn help(reclaimer: &Reclaimer, buffer: &mut Access<'_>, index: usize, over: bool) {
    /// A grace period for less than this part of the soft cap is not worth it.
    const PART: u64 = 32;
    // Over the soft cap: all at once, instead of one at each registration.
    let run = |buffer: &mut Access<'_>| {
        if over && buffer.has_ready() {
            run_ready(buffer, usize::MAX);
            reclaimer.close_buffer(buffer);
        }
    };
    run(buffer);
    if !buffer.has_ready() && load_exceeds(buffer.since_help(), &reclaimer.soft_cap().part(PART)) {
        buffer.begin_help();
        make_ready(reclaimer, buffer, index);
        run(buffer);
    }
}

/// Takes the mere frees from a CPU's list, makes a grace period, and puts them into the buffer,
/// where none are ready. Returns whether some are ready now.
fn make_ready(reclaimer: &Reclaimer, buffer: &mut Access<'_>, index: usize) -> bool {
    let first = reclaimer.lists.take(index, true);
    if first.is_null() {
        return false;
    }
    #[cfg(reprieve_fault)]
    let early = crate::platform::fault::is(crate::platform::fault::Fault::ScanFirst)
        .then(|| reclaimer.scan());
    if !reclaimer.grace.quick_grace_period() {
        // SAFETY: the chain is ours, and in the pending count.
        unsafe { reclaimer.lists.give(index, true, Chain::of(first)) };
        // The worker may have found the list empty meanwhile, and sleep.
        reclaimer.queues[index].worker.notify();
        return false;
    }
    #[cfg(reprieve_fault)]
    let protected = early.unwrap_or_else(|| reclaimer.scan());
    #[cfg(not(reprieve_fault))]
    let protected = reclaimer.scan();
    let (mut free, mut held) = (Chain::EMPTY, Chain::EMPTY);
    let mut next = first;
    // SAFETY: the chain is ours.
    unsafe {
        if protected.is_empty() {
            free = Chain { first, last: first };
            next = std::ptr::null_mut();
        }
        while let Some(head) = next.as_mut() {
            next = head.next;
            if head.node != 0 && protected.contains(head.node) {
                held.push(head);
            } else {
                free.push(head);
            }
        }
        if !held.is_empty() {
            reclaimer.queues[index].set_aside(held);
        }
    }
    if free.is_empty() {
        return false;
    }
    reclaimer.stats.helped.fetch_add(1, Ordering::Relaxed);
    buffer.set_ready(index, free);
    true
}

/// Over the cap: returns below it, or after [`LONGEST`].
#[cold]
#[inline(never)]
pub(super) fn wait_for_room(reclaimer: &Arc<Reclaimer>, index: usize) {
    reclaimer.stats.over_cap.fetch_add(1, Ordering::Relaxed);
    if reclaimer.grace.in_section() || crate::thread::in_callback() {
        return reclaimer.wake_workers();
    }
    let _cancel = CancelDisabled::new();
    reclaimer.grace.urgency.begin();
    reclaimer.wake_workers();
    let deadline = Instant::now() + LONGEST;
    while reclaimer.over_cap() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if !help_over_cap(reclaimer, index, deadline) {
            reclaimer.await_room(left);
        }
    }
    reclaimer.grace.urgency.end();
    if reclaimer.over_cap() {
        reclaimer.recover_from_dead();
    }
}

/// Runs what this thread may run. Returns whether it ran anything.
fn help_over_cap(reclaimer: &Arc<Reclaimer>, index: usize, deadline: Instant) -> bool {
    use super::queue::{Step, Who};
    if let Some(buffer) = &mut reclaimer.own_buffer() {
        reclaimer.close_buffer(buffer);
        if buffer.has_ready() || may_help(reclaimer) && make_ready(reclaimer, buffer, index) {
            run_ready(buffer, usize::MAX);
            reclaimer.close_buffer(buffer);
            return true;
        }
    }
    let queue = &reclaimer.queues[index];
    if queue.started.load(Ordering::Relaxed) {
        return false;
    }
    // The system refused a thread for the worker. This thread runs mere frees, which are all that
    // it may run, and leaves the rest.
    let step = queue.step(reclaimer, Who::Helper(deadline));
    reclaimer.unserved.note();
    step == Step::Progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use crate::thread::head::{Head, LEAF};
    use std::sync::atomic::AtomicBool;

    /// A helper takes the callbacks from a list, a reader prevents its grace period, and it puts
    /// them back. The worker may have looked at the list in between, and sleeps: for ever, and the
    /// test hangs, if nobody wakes it.
    #[test]
    fn what_a_helper_puts_back_wakes_the_worker() {
        let domain = Domain::builder().single_list(true).build().unwrap();
        let reclaimer = domain.reclaimer();
        let guard = domain.read_lock();
        let queue = &reclaimer.queues[0];
        // This test is the worker.
        queue.started.store(true, Ordering::Relaxed);
        let mut head = Head { flags: LEAF, ..Head::new() };
        let asleep = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                queue.worker.sleep(None, || {
                    asleep.store(true, Ordering::SeqCst);
                    false
                });
            });
            while !asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // A fork in another test keeps owners out of their buffers for a while.
            let buffer = &mut loop {
                match reclaimer.own_buffer() {
                    Some(buffer) => break buffer,
                    None => std::thread::yield_now(),
                }
            };
            // SAFETY: it outlives the domain's interest in it, and is run below, which does
            // nothing.
            unsafe { reclaimer.lists.push(0, &mut head) };
            assert!(!make_ready(reclaimer, buffer, 0) && reclaimer.lists.any(0));
            worker.join().unwrap();
        });
        drop(guard);
        queue.started.store(false, Ordering::Relaxed);
        domain.barrier().unwrap();
    }
}
