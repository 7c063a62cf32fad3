// SPDX-License-Identifier: MIT OR Apache-2.0
//! The domains in a fork: the child can use them at once.
//!
//! Only the forking thread exists in the child. Its own sections and protections go on there; those
//! of the parent's other threads are forgotten, so references from their guards must not be used
//! there (those from guards that a thread leaked before it ended may). Two exceptions, both of
//! threads that use guards in the last of their destructors: what a thread leaked that entered its
//! first section there, and was joined a moment before the fork, is forgotten; and a section that
//! the very last destructor was about to end goes on in the child. A grace period that was running
//! counts as not begun. Callbacks that were waiting run in both processes (each frees its own
//! copy): in the child once it registers a callback or waits for one. The child has no workers
//! until then, and gets them for all CPUs at once.
//!
//! To find every queue and every buffer consistent, a fork waits until no callback is being run or
//! registered, at most [`LONGEST`]. A queue whose lock it could not take by then (its callback may
//! wait for a lock of the forking thread) is abandoned in the child: its batch is leaked and never
//! runs twice. The same holds for a buffer. A callback may itself fork.
//!
//! The forking thread may be in the middle of a registration: it forks in a signal handler, or in a
//! leaf callback that it runs from its buffer. Nobody waits for it then, its buffer is left as it
//! is, and the registration goes on in both processes. The callbacks that it has in hand are in the
//! pending counts, but in no place where they could be counted. So the child's pending counts stay
//! those of the parent, until the registration is over and a recount subtracts the callbacks of the
//! other threads (`callback/recount.rs`). Callbacks in its buffer wait for the thread to fill it,
//! if the child does nothing else with callbacks. A handler that interrupted a *wait*
//! (`synchronize`, `barrier`) must not fork, unless the child only execs: the locks that the wait
//! holds are free in the child.
//!
//! Handlers that the program registers itself run outside of these, and may wait for grace periods
//! and callbacks, except those that were there before the library was loaded (`start.rs`).
//!
//! `vfork` and raw `clone` run none of this; a child that only execs needs none.

use super::table::all;
use crate::callback::reclaimer::Reclaimer;
use crate::platform::fork::Handlers;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait for one queue, or for one domain's buffers.
const LONGEST: Duration = Duration::from_secs(1);

/// The domains' fork handlers.
pub(super) static HANDLERS: Handlers = Handlers { prepare, parent, child };

/// Calls `f` with each queue, and whether this thread is running its callbacks.
fn queues(mut f: impl FnMut(&'static Reclaimer, usize, bool)) {
    for reclaimer in all() {
        for index in 0..reclaimer.queues.len() {
            f(reclaimer, index, reclaimer.queues[index].running_here());
        }
    }
}

fn prepare() {
    for reclaimer in all() {
        reclaimer.hold_buffers(LONGEST);
    }
    queues(|reclaimer, index, mine| {
        let queue = &reclaimer.queues[index];
        let missed = !mine && !queue.lock.lock_for(Some(LONGEST));
        queue.missed.store(missed, Ordering::Relaxed);
    });
}

fn parent() {
    queues(|reclaimer, index, mine| {
        let queue = &reclaimer.queues[index];
        if !mine && !queue.missed.load(Ordering::Relaxed) {
            queue.lock.unlock();
        }
    });
    for reclaimer in all() {
        reclaimer.release_buffers();
    }
}

fn child() {
    for reclaimer in all() {
        reclaimer.after_fork();
    }
}
