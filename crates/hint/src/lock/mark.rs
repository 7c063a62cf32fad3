// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether, and as what, a lock's sections are hinted at.

use crate::thread::{Kind, Line};
use crate::wait;

/// How a lock marks its sections. Not for other crates to implement.
pub trait Mark: private::Sealed + 'static {
    /// The kind of section, if it is marked.
    const KIND: Option<Kind>;
}

mod private {
    pub trait Sealed {}
}

/// Waiters mostly spin: sections are non-preemptable.
pub struct Spins;
/// Waiters mostly sleep: sections are preemptable.
pub struct Sleeps;
/// Sections are not marked. The lock waits in the same way.
pub struct Unmarked;

impl private::Sealed for Spins {}
impl private::Sealed for Sleeps {}
impl private::Sealed for Unmarked {}

impl Mark for Spins {
    const KIND: Option<Kind> = Some(Kind::NonPreemptable);
}

impl Mark for Sleeps {
    const KIND: Option<Kind> = Some(Kind::Preemptable);
}

impl Mark for Unmarked {
    const KIND: Option<Kind> = None;
}

/// The thread of that line has taken a lock, or has not.
#[inline(always)]
pub(crate) fn begun<M: Mark>(line: &Line, taken: bool) -> bool {
    if taken {
        wait::took(line);
        if let Some(kind) = M::KIND {
            line.enter(kind);
        }
    }
    taken
}

#[inline(always)]
pub(crate) fn leave<M: Mark>() {
    if let Some(kind) = M::KIND {
        crate::thread::me().leave(kind);
    }
}
