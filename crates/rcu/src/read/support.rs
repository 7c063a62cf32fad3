// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program may know about its read sides.

use super::restart::selftest;
use crate::platform::facts::{self, Restartable};

/// What this process can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Readers execute no fence; grace periods use membarrier.
    pub membarrier: bool,
    /// Whether lookups use restartable sections, or why not.
    pub restartable: Restartable,
}

/// What this process can do. Runs the self-test of restartable sections if it has not run yet.
pub fn support() -> Support {
    let restartable = selftest::restartable();
    Support { membarrier: !facts::fenced(), restartable }
}
