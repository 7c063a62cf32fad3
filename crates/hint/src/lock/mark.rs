// SPDX-License-Identifier: MIT OR Apache-2.0
//! As what a lock's sections are hinted at.

use crate::thread::{Kind, Line};
use crate::wait;

/// How a lock marks its sections. Not for other crates to implement.
pub trait Mark: private::Sealed + 'static {
    /// The kind of section.
    const KIND: Kind;
}

mod private {
    pub trait Sealed {}
}

/// Waiters mostly spin: sections are non-preemptable.
pub struct Spins;
/// Waiters mostly sleep: sections are preemptable.
pub struct Sleeps;

impl private::Sealed for Spins {}
impl private::Sealed for Sleeps {}

impl Mark for Spins {
    const KIND: Kind = Kind::NonPreemptable;
}

impl Mark for Sleeps {
    const KIND: Kind = Kind::Preemptable;
}

/// The thread of that line has taken a lock, or has not.
#[inline(always)]
pub(crate) fn begun<M: Mark>(line: &Line, taken: bool) -> bool {
    if taken {
        wait::took(line);
        line.enter(M::KIND);
    }
    taken
}

#[inline(always)]
pub(crate) fn leave<M: Mark>() {
    crate::thread::me().leave(M::KIND);
}
