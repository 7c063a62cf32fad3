// SPDX-License-Identifier: MIT OR Apache-2.0
//! The read sides whose guards this project's structures take: plain sections and QSBR.

use reprieve::{Domain, Guard, Qsbr, QsbrGuard, ReadSide};

/// How a thread enters sections of the default domain.
pub trait Enter {
    type Guard<'a>: ReadSide
    where
        Self: 'a;

    /// For the calling thread.
    fn new() -> Self;
    fn enter(&self) -> Self::Guard<'_>;
    /// Ends a batch (QSBR: a quiescent state).
    fn after(&mut self) {}
}

pub struct Plainly;

impl Enter for Plainly {
    type Guard<'a> = Guard<'static>;

    fn new() -> Plainly {
        Plainly
    }

    #[inline(always)]
    fn enter(&self) -> Guard<'static> {
        reprieve::read_lock()
    }
}

/// Announces a quiescent state after each batch, as liburcu's flavor does.
pub struct Online(Qsbr<'static>);

impl Enter for Online {
    type Guard<'a> = QsbrGuard<'a>;

    fn new() -> Online {
        Online(Domain::global().qsbr())
    }

    #[inline(always)]
    fn enter(&self) -> QsbrGuard<'_> {
        self.0.read_lock()
    }

    fn after(&mut self) {
        self.0.quiescent_state();
    }
}
