// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes with callbacks and without a worker. The child of a fork begins with them, and the system
//! may refuse a thread. The threads that register there may not come again: others start the
//! worker for them.
//!
//! > **Invariant.** Who puts callbacks on the lists of a lane that has no worker sets the note
//! > afterwards. Who takes the note looks at all lanes afterwards. So the look finds the callbacks,
//! > or the note is set again, for the next registration.

use crate::platform::sync::{AtomicU32, Ordering};

pub(crate) struct Unserved(AtomicU32);

impl Unserved {
    pub(crate) fn new() -> Unserved {
        Unserved(AtomicU32::new(0))
    }

    /// Notes that a lane may be unserved.
    pub(crate) fn note(&self) {
        // Pairs with `take`. An exchange: who takes the note of one thread has those that it
        // replaced as well.
        self.0.swap(1, Ordering::Release);
    }

    pub(crate) fn noted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Before a look at all lanes.
    pub(crate) fn take(&self) {
        self.0.swap(0, Ordering::Acquire);
    }
}
