// SPDX-License-Identifier: MIT OR Apache-2.0
//! What threads take with them that end in the middle of a registration, and how the account is put right.
//!
//! Such a thread has callbacks in hand that nobody will run, and may have added to the account what it did not put anywhere, or put somewhere what it
//! did not take from the account: between which two instructions it ended cannot be told. The account shows too much from then on, and `barrier` would wait for
//! what is nowhere. (The same in the child of a fork that a signal handler made in the middle of a registration: the account stays the parent's
//! there, which shows what the parent's other threads had in hand.)
//!
//! So when a sweep has come upon an abandoned stash the callbacks of a phase are counted. While all owners are kept out, all stashes emptied, and all queues
//! locked, each callback of the account is on a list or in a batch:
//!
//! > **Invariant.** Between the account and its place a callback is with an owner inside its stash, with whoever has the queue's lock,
//! > with a thread that says so ([`Stash::beside`](super::stash::Stash::beside)), or with one that has the sweepers' lock.
//!
//! Registrations beside a stash are not kept out, but they are noticed: then the count is made again later. They use the current phase; `barrier` counts the
//! other one, where nothing but stale ones can come.
//!
//! Order of locks: the sweepers', then the queues'. A queue may be locked for as long as its callbacks take, so nobody waits for it here.

use super::load::Load;
use crate::domain::core::Core;
use std::time::Duration;

/// Longest wait for a queue.
const PATIENCE: Duration = Duration::from_millis(1);

impl Core {
    /// Puts the accounts right, if a thread has ended in the middle of a registration, and as far as that can be done now.
    pub(crate) fn audit(&self) {
        for phase in [0, 1] {
            if self.intake.lost(phase) {
                self.intake.settle(self.registry(), phase, || self.count(phase));
                // What was in stashes is on the lists, and lists were empty for a moment.
                self.wake_workers();
                self.notice_progress();
            }
        }
    }

    /// What the account of a phase shows, and what there is. `None` if a queue is in use.
    fn count(&self, phase: usize) -> Option<(Load, Load)> {
        let locked = self.queues.iter().take_while(|q| q.lock.lock_for(Some(PATIENCE))).count();
        let counted = (locked == self.queues.len()).then(|| {
            let shown = self.intake.waiting(phase);
            // SAFETY: under the lock.
            let there = |queue| unsafe { super::queue::Queue::count(queue, self) };
            let found = self.queues.iter().fold(Load::NONE, |sum, q| sum.add(there(q)[phase]));
            (shown, found)
        });
        self.queues[..locked].iter().for_each(|q| q.lock.unlock());
        counted
    }
}
