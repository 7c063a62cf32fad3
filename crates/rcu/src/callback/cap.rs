// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two caps on waiting callbacks, and what a registration does when one is exceeded.
//!
//! - **Below the soft cap** it does nothing: a worker will come.
//! - **Near it** a thread that registers a mere free *helps*, if that is quick: it takes what its CPU has registered, makes a grace period of its own (one
//!   membarrier and a look: nobody is inside a plain section), and keeps what may be freed in its stash, to free one at each
//!   registration from then on: its allocator gives it again what it just freed. **Above it** it frees all that it has kept
//!   at once, and the workers do not let batches gather any more. If the last grace periods were not quick (plain sections hold them up; or the
//!   membarrier waits for virtual CPUs that do not run) it leaves everything to the workers: below the cap nobody waits for a reader.
//! - **Above the cap** a registration waits, at most [`LONGEST`] besides what it does itself, until enough callbacks have run. Few of those who wait are woken at a time: each goes
//!   on until the cap is reached again.
//!
//! Why two: garbage that waits for nothing but somebody's attention is best kept small, since what is freed soon is still in the cache; garbage that
//! waits for a reader who is off its CPU piles up at the rate of the updates times tens of milliseconds, and a cap below
//! that does not save memory worth having, but turns each preemption of a reader into one of all writers.

use super::list::Chain;
use super::register::{load_exceeds, run_ready};
use super::stash::Access;
use crate::domain::core::Core;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An amount of waiting callbacks. `u64::MAX` is no limit. What waits for [`Protected`](crate::Protected) guards only does not count: nobody
/// but their owners can help.
///
/// How exact it is: a thread reserves room for several callbacks at a time, 64 at most, of 1/32 of the soft cap and 1 MiB in all at most, and looks at the cap
/// before. Threads that look at the same moment may exceed it by such a reservation each: with the default soft cap by 2 MiB in 64 threads.
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

    /// The soft cap's default: 1 MiB, 16,384 callbacks. Beyond them waiting costs more cache than it saves work.
    pub const SOFT: Cap = Cap { bytes: 1 << 20, callbacks: 1 << 14 };

    pub(crate) fn min(self, other: Cap) -> Cap {
        Cap { bytes: self.bytes.min(other.bytes), callbacks: self.callbacks.min(other.callbacks) }
    }

    /// Where helping begins.
    pub(super) fn most(self) -> Cap {
        let most = |n| n - n / 8;
        Cap { bytes: most(self.bytes), callbacks: most(self.callbacks) }
    }

    /// A part of it.
    fn part(self, of: u64) -> Cap {
        Cap { bytes: self.bytes / of, callbacks: self.callbacks / of }
    }
}

impl Default for Cap {
    /// 64 MiB, 1,048,576 callbacks: what a thread that updates without a pause makes in the time for which a busy machine keeps a plain reader off
    /// its CPU (some 70 ms with 16 threads for two CPUs), and more than twice that. With restartable readers only, the soft cap is what shows.
    fn default() -> Cap {
        Cap { bytes: 64 << 20, callbacks: 1 << 20 }
    }
}

/// Longest time for which one registration waits for room, or begins to help. What it has begun it finishes: a membarrier, which takes as long as a CPU
/// takes to answer; the look at the readers; and the mere frees that are ready, which are those of one CPU, or of a batch.
const LONGEST: Duration = Duration::from_millis(20);

/// Callbacks that a thread may register when it has waited that long, until it waits again.
pub(super) const BEYOND: u64 = 32;

/// Whether this thread may make a grace period and run what is a mere free.
pub(super) fn may_help(core: &Core) -> bool {
    core.quick() && !core.in_section() && !crate::thread::in_callback()
}

/// Near the soft cap or `over` it: makes what is on the CPU's list ready; or runs what is, if there is still too much. The stash is closed.
pub(super) fn help(core: &Core, stash: &mut Access<'_>, index: usize, over: bool) {
    /// A grace period for less than this part of the soft cap is not worth it.
    const PART: u64 = 32;
    // When there is too much already, not one by one.
    let run = |stash: &mut Access<'_>| {
        if over && stash.has_ready() {
            run_ready(stash, usize::MAX);
            core.close_stash(stash);
        }
    };
    run(stash);
    if !stash.has_ready() && load_exceeds(stash.since_help(), &core.soft_cap().part(PART)) {
        stash.begin_help();
        make_ready(core, stash, index);
        run(stash);
    }
}

/// Takes the mere frees of a CPU's list through a grace period, into the stash, where none are ready. Whether there are some then.
fn make_ready(core: &Core, stash: &mut Access<'_>, index: usize) -> bool {
    let first = core.intake.take(index, true);
    if first.is_null() {
        return false;
    }
    #[cfg(reprieve_fault)]
    let early = crate::fault::is(crate::fault::Fault::ScanFirst).then(|| core.scan());
    if !core.quick_grace_period() {
        // SAFETY: the chain is ours, and in the account.
        unsafe { core.intake.give(index, true, Chain::of(first)) };
        // The worker may have found the list empty meanwhile, and sleep.
        core.queues[index].alarm.work();
        return false;
    }
    #[cfg(reprieve_fault)]
    let protected = early.unwrap_or_else(|| core.scan());
    #[cfg(not(reprieve_fault))]
    let protected = core.scan();
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
            core.queues[index].set_aside(held);
        }
    }
    if free.is_empty() {
        return false;
    }
    core.callbacks.helped.fetch_add(1, Ordering::Relaxed);
    stash.set_ready(index, free);
    true
}

/// Over the cap: returns below it, or after [`LONGEST`].
#[cold]
#[inline(never)]
pub(super) fn relieve(core: &Arc<Core>, index: usize) {
    core.callbacks.over_cap.fetch_add(1, Ordering::Relaxed);
    if core.in_section() || crate::thread::in_callback() {
        return core.wake_workers();
    }
    core.grace.urgency.begin();
    core.wake_workers();
    let deadline = Instant::now() + LONGEST;
    while core.over_cap() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        if !drive(core, index, deadline) {
            core.await_room(left);
        }
    }
    core.grace.urgency.end();
    if core.over_cap() {
        core.seek_lost();
    }
}

/// Does what this thread may. Whether it ran anything.
fn drive(core: &Arc<Core>, index: usize, deadline: Instant) -> bool {
    use super::queue::{Step, Who};
    if let Some(stash) = &mut core.own_stash() {
        core.close_stash(stash);
        if stash.has_ready() || may_help(core) && make_ready(core, stash, index) {
            run_ready(stash, usize::MAX);
            core.close_stash(stash);
            return true;
        }
    }
    let queue = &core.queues[index];
    // Where the system has no thread for a worker, mere frees are all that can be run.
    !queue.started.load(Ordering::Relaxed)
        && queue.step(core, Who::Helper(deadline)) == Step::Progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use crate::callback::{Head, LEAF};
    use std::sync::atomic::AtomicBool;

    /// A helper takes what is on a list, a reader keeps it from a grace period, and it puts the callbacks back: the worker may have looked at the list in
    /// between, and sleeps.
    #[test]
    fn what_a_helper_puts_back_wakes_the_worker() {
        const LONG: Duration = Duration::from_secs(20);
        let domain = Domain::builder().single_list(true).build().unwrap();
        let core = domain.core();
        let guard = domain.read_lock();
        let queue = &core.queues[0];
        // This test is the worker.
        queue.started.store(true, Ordering::Relaxed);
        let mut head = Head { flags: LEAF, ..Head::new() };
        let asleep = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let start = Instant::now();
                queue.alarm.sleep(Some(LONG), || {
                    asleep.store(true, Ordering::SeqCst);
                    false
                });
                start.elapsed()
            });
            while !asleep.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let stash = &mut core.own_stash().unwrap();
            // SAFETY: it outlives the domain's interest in it, and is run below, which does nothing.
            unsafe { core.intake.push(0, &mut head) };
            assert!(!make_ready(core, stash, 0) && core.intake.any(0));
            assert!(worker.join().unwrap() < LONG, "nobody woke it");
        });
        drop(guard);
        queue.started.store(false, Ordering::Relaxed);
        domain.barrier().unwrap();
    }
}
