// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read sides by sections: the readers of the benchmark's own nodes, and what they differ in. And
//! those whose guards this project's structures take: plain sections and QSBR.

use super::{Reader, find, lookups, repeat, wrong};
use crate::table::{Node, Table};
use reprieve::{Domain, Guard, Qsbr, QsbrGuard, ReadSide};
use std::sync::atomic::AtomicPtr;

/// A way to enter sections.
///
/// # Safety
/// A node of the benchmark's table that was loaded in a section is not freed before its end.
pub unsafe trait Sections {
    type Section<'a>
    where
        Self: 'a;

    fn enter(&self) -> Self::Section<'_>;

    fn load(section: &Self::Section<'_>, from: &AtomicPtr<Node>) -> *mut Node;

    /// A section with nothing inside; a quiescent state, where there are quiescent states.
    #[inline(always)]
    fn empty(&mut self) {
        drop(self.enter());
    }

    /// Ends a batch (QSBR: a quiescent state).
    fn after(&mut self) {}
}

/// A reader by sections.
pub struct InSections<'a, S>(pub &'a Table, pub S);

// SAFETY of all loads: the promise of the trait.
impl<S: Sections> Reader for InSections<'_, S> {
    fn empty(&mut self, n: u64) {
        (0..n).for_each(|_| self.1.empty());
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        let bad = lookups(self.0, seed, n, |head, key| {
            let section = self.1.enter();
            // SAFETY: see above.
            unsafe { find(head, key, |p| S::load(&section, p)) }
        });
        self.1.after();
        bad
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.0.head(0);
        let bad = repeat(n, || {
            let section = self.1.enter();
            // SAFETY: see above.
            unsafe { wrong(head, |p| S::load(&section, p)) }
        });
        self.1.after();
        bad
    }
}

// SAFETY: nodes are retired in the default domain.
unsafe impl<E: Enter> Sections for E {
    type Section<'a>
        = E::Guard<'a>
    where
        E: 'a;

    #[inline(always)]
    fn enter(&self) -> E::Guard<'_> {
        Enter::enter(self)
    }

    #[inline(always)]
    fn load(section: &E::Guard<'_>, from: &AtomicPtr<Node>) -> *mut Node {
        section.section().load(from)
    }

    #[inline(always)]
    fn empty(&mut self) {
        Enter::empty(self);
    }

    fn after(&mut self) {
        Enter::after(self);
    }
}

/// How a thread enters sections of the default domain.
pub trait Enter {
    type Guard<'a>: ReadSide
    where
        Self: 'a;

    /// For the calling thread.
    fn new() -> Self;
    fn enter(&self) -> Self::Guard<'_>;
    /// See [`Sections::empty`].
    #[inline(always)]
    fn empty(&mut self) {
        drop(self.enter());
    }
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

    #[inline(always)]
    fn empty(&mut self) {
        self.0.quiescent_state();
    }

    fn after(&mut self) {
        self.0.quiescent_state();
    }
}
