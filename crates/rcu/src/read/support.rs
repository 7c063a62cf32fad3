// SPDX-License-Identifier: MIT OR Apache-2.0
//! The support for read sides, as a program may ask for it.

use super::restart::selftest;
use crate::platform::exit;
use crate::platform::facts::{self, Restartable};

/// The abilities of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Readers execute no fence; grace periods use membarrier.
    pub membarrier: bool,
    /// Whether lookups use restartable sections, or why not.
    pub restartable: Restartable,
    /// A signal handler may be the first reader of its thread. Not if the C library allocates
    /// memory when a thread registers: glibc does if the library was loaded at run time, by
    /// `dlopen`, into a program that had 32 thread-specific keys. There threads read once, or call
    /// `reprieve_register_thread`, before their handlers do.
    pub first_read_in_handler: bool,
    /// A thread that exits is unregistered. Not if the program had no thread-specific key left
    /// when the library was loaded: then its records are given up as those of a dead thread, and
    /// those that no grace period waits for at
    /// [`forget_dead_threads`](crate::Domain::forget_dead_threads). Those with open sections or
    /// protections of guards are not given up.
    pub exits_noticed: bool,
}

/// The abilities of this process. Runs the self-test of restartable sections if it has not run yet.
pub fn support() -> Support {
    let restartable = selftest::restartable();
    Support {
        membarrier: !facts::fenced(),
        restartable,
        first_read_in_handler: !exit::allocates(),
        exits_noticed: exit::noticed(),
    }
}
