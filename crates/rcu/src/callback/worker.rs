// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that runs a queue's callbacks on the queue's CPU.
//!
//! The first registration on that CPU starts it. A batch gathers for [`LINGER`], or until it is
//! [`full`]; while one batch waits for its grace period the next one gathers. The worker takes
//! callbacks out of a buffer whose owner has not opened it again for that time. The worker blocks
//! all signals, so that handlers run on the program's own threads. It has no real-time policy,
//! whoever started it: with that it would run before readers that its grace periods wait for, and
//! callbacks before the program's own work. Nor has it a lower priority than the main thread, where
//! the system allows that: all threads wait for the grace periods that it leads.
//!
//! A real-time thread may thus keep a worker from its CPU for ever. Then the callbacks of that CPU
//! wait, and nothing else: as the leader of a grace period it is unbound (`grace/sequence.rs`), and
//! nobody but a caller of `barrier` waits for a sweep.

use super::limits;
use super::per_cpu_lists::Swept;
use super::queue::{Step, Who};
use super::reclaimer::Reclaimer;
use crate::platform::sys;
use crate::thread;
use crate::thread::load::Load;
use std::sync::Arc;
use std::time::Duration;

/// How long a small batch gathers.
const LINGER: Duration = Duration::from_millis(1);

/// Pauses between two looks at callbacks whose nodes are protected: the first and the longest.
const HELD: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// After so many turns the worker finds out whether owners of callbacks are dead.
const DOUBT: u64 = 100;

/// Whether a batch need not gather longer. A registering thread that frees its own nodes takes them
/// from the list before the batch is full ([`limits`](super::limits)).
pub(crate) fn full(load: Load) -> bool {
    load.callbacks() >= 2 * limits::OWN || load.bytes() >= 128 << 10
}

/// Starts the worker of queue `index`. False if the system refuses a thread: the next registration
/// tries again.
pub(crate) fn start(reclaimer: &Arc<Reclaimer>, index: usize) -> bool {
    reclaimer.start(format_args!("reprieve-cb/{index}"), move |reclaimer| work(reclaimer, index))
}

/// Binds this thread to the CPU, if its creator was allowed to run there: queues are numbered as
/// CPUs are, and queue 0 has a worker even if the program may not run on CPU 0.
fn bind(cpu: usize) {
    if sys::may_use(cpu) {
        sys::bind(cpu);
    }
}

fn work(reclaimer: &Arc<Reclaimer>, index: usize) {
    let queue = &reclaimer.queues[index];
    if reclaimer.queues.len() > 1 {
        bind(index);
    }
    thread::note_bound();
    let in_a_hurry = || reclaimer.grace.urgency.any() || reclaimer.stopping();
    let gather = || {
        let enough = || full(reclaimer.lists.lane(index).pending.here());
        if !in_a_hurry() {
            queue.worker.linger(LINGER, || enough() || in_a_hurry());
        }
    };
    let found = || queue.any(reclaimer) || reclaimer.buffered(index);
    let mut held_pause = HELD.0;
    let mut turns = 0u64;
    loop {
        turns += 1;
        if turns % DOUBT == 0 {
            reclaimer.recover_from_dead();
        }
        let step = queue.step(reclaimer, Who::Worker);
        reclaimer.calm();
        if step == Step::Progress {
            held_pause = HELD.0;
            gather();
            continue;
        }
        match reclaimer.sweep_lane(index, reclaimer.stopping()) {
            Swept::Some => continue,
            Swept::Later => {
                queue.worker.linger(LINGER, || false);
                continue;
            }
            Swept::Nothing => (),
        }
        reclaimer.recount();
        if step == Step::Idle {
            if reclaimer.stopping() {
                return;
            }
            queue.worker.sleep(None, || found() || reclaimer.stopping());
            // Notes which buffers have callbacks now. Those that still have them when the batch has
            // gathered are swept.
            reclaimer.sweep_lane(index, false);
            gather();
        } else {
            queue.worker.sleep(Some(held_pause), found);
            held_pause = (held_pause * 2).min(HELD.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;
    use crate::thread::head::Head;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const NONE: usize = usize::MAX;

    #[repr(C)]
    struct Callback {
        head: Head,
        /// The only CPU of the thread that ran it.
        cpu: AtomicUsize,
    }

    unsafe extern "C" fn note_cpu(head: *mut Head) {
        // SAFETY: the head is a callback's first field, and callbacks are never given back.
        let callback = unsafe { &*head.cast::<Callback>() };
        callback.cpu.store(sys::only_cpu().unwrap_or(NONE), Ordering::SeqCst);
    }

    /// A worker starts those of other lanes, which go to their own CPUs.
    #[test]
    fn a_worker_that_another_worker_starts_is_not_bound_to_its_cpu() {
        crate::platform::start::ensure();
        let cpus: Vec<usize> = (0..sys::cpus()).filter(|&cpu| sys::usable_at_start(cpu)).collect();
        let [first, .., last] = cpus[..] else { return println!("one CPU: skipped") };
        let domain = Domain::builder().build().unwrap();
        let reclaimer = domain.reclaimer();
        let head = Head { function: Some(note_cpu), ..Head::new() };
        let callback = Box::into_raw(Box::new(Callback { head, cpu: AtomicUsize::new(NONE) }));
        // SAFETY: fresh, and never given back.
        unsafe { reclaimer.lists.push(last, callback.cast()) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(sys::bind(first));
                thread::note_bound();
                reclaimer.wake_workers();
            });
        });
        assert!(reclaimer.queues[last].started.load(Ordering::SeqCst), "without a registration");
        domain.barrier().unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { &*callback }.cpu.load(Ordering::SeqCst), last);
    }
}
