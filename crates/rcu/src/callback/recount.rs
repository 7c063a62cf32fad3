// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recounts callbacks after a thread died while it registered one.
//!
//! The callbacks that such a thread had in hand never run. It may have added callbacks to the
//! pending count that it did not put anywhere, or put back callbacks that it did not subtract: one
//! cannot tell between which two instructions it ended. The pending count is too large from then
//! on, and `barrier` would wait for callbacks that do not exist. (The same happens in the child of
//! a fork that a signal handler made in the middle of a registration: the pending counts stay the
//! parent's there, and include callbacks that the parent's other threads had in hand.)
//!
//! After a sweep has found an abandoned buffer, the callbacks of a phase are counted. While all
//! owners are kept out, all buffers are empty, and all queues are locked, each callback of the
//! pending count is on a list or in a batch:
//!
//! > **Invariant.** A callback that is in the pending count and in no place is in the hands of an
//! > owner inside its buffer, of the holder of the queue's lock, of a thread that says so
//! > ([`Buffer::register_unbuffered`](crate::thread::buffer::Buffer::register_unbuffered)), or of
//! > the holder of the sweepers' lock.
//!
//! Registrations without a buffer are not kept out, but they are noticed: then the recount is made
//! again later. They use the current phase; `barrier` recounts the other one, which only
//! registrations that read the phase long ago still use.
//!
//! Order of locks: the sweepers', then the queues'. A queue may be locked for as long as its
//! callbacks take, so nobody waits for it here.

use super::reclaimer::Reclaimer;
use crate::thread::load::Load;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a queue.
const PATIENCE: Duration = Duration::from_millis(1);

impl Reclaimer {
    /// Corrects the pending counts, if a thread has ended in the middle of a registration, and if
    /// that is possible now.
    pub(crate) fn recount(self: &Arc<Reclaimer>) {
        for phase in [0, 1] {
            if self.lists.lost(phase) {
                self.lists.settle(self.registry(), phase, || self.count(phase));
                // Callbacks of buffers are on the lists now, and the lists were empty for a moment.
                self.wake_workers();
                self.notice_progress();
            }
        }
    }

    /// The pending count of a phase, and the callbacks that there are. `None` if a queue is in use.
    fn count(&self, phase: usize) -> Option<(Load, Load)> {
        let locked = self.queues.iter().take_while(|q| q.lock.lock_for(Some(PATIENCE))).count();
        let counted = (locked == self.queues.len()).then(|| {
            let shown = self.lists.waiting(phase);
            // SAFETY: under the lock.
            let there = |queue| unsafe { super::queue::Queue::count(queue, self) };
            let found = self.queues.iter().fold(Load::NONE, |sum, q| sum.add(there(q)[phase]));
            (shown, found)
        });
        self.queues[..locked].iter().for_each(|q| q.lock.unlock());
        counted
    }
}
