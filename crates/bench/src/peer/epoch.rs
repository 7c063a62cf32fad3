// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers that defer frees by epochs: crossbeam-epoch in its default collector, and sdd.

use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer, replace_and_await};
use crate::error::Result;
use crate::table::{Node, Table, free};
use std::marker::PhantomData;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// # Safety
/// What is deferred in a section runs after all sections that have begun by then.
pub unsafe trait Epoch: Sized {
    fn enter() -> Self;
    /// Runs a function when it may.
    ///
    /// # Safety
    /// Any thread may run it.
    unsafe fn defer(&self, run: impl FnOnce() + 'static);
    /// Hurries what this thread has deferred.
    fn hurry();
}

pub type Crossbeam = crossbeam_epoch::Guard;
pub type Sdd = sdd::Guard;

// SAFETY: crossbeam's promise.
unsafe impl Epoch for Crossbeam {
    #[inline(always)]
    fn enter() -> Self {
        crossbeam_epoch::pin()
    }

    unsafe fn defer(&self, run: impl FnOnce() + 'static) {
        // SAFETY: the caller's promise.
        unsafe { self.defer_unchecked(run) };
    }

    fn hurry() {
        crossbeam_epoch::pin().flush();
    }
}

// SAFETY: sdd's promise.
unsafe impl Epoch for Sdd {
    #[inline(always)]
    fn enter() -> Self {
        sdd::Guard::new()
    }

    unsafe fn defer(&self, run: impl FnOnce() + 'static) {
        self.defer_execute(run);
    }

    fn hurry() {
        sdd::Guard::new().accelerate();
    }
}

/// The peer, and the way into its sections.
pub struct Epochs<E>(PhantomData<fn() -> E>);

impl<E> Default for Epochs<E> {
    fn default() -> Self {
        Epochs(PhantomData)
    }
}

impl<E: Epoch> Peer for Epochs<E> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(InSections(table, Self::default()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Deferring::<E>(table, PhantomData))
    }
}

// SAFETY: nodes are freed by deferred functions.
unsafe impl<E: Epoch> Sections for Epochs<E> {
    type Section<'a>
        = E
    where
        Self: 'a;

    #[inline(always)]
    fn enter(&self) -> E {
        E::enter()
    }

    #[inline(always)]
    fn load(_: &E, from: &AtomicPtr<Node>) -> *mut Node {
        from.load(Acquire)
    }
}

struct Deferring<'a, E>(&'a Table, PhantomData<E>);

impl<E: Epoch> Writer for Deferring<'_, E> {
    fn replace(&mut self, key: u64) {
        let section = E::enter();
        let node = self.0.replace(key, false);
        // SAFETY: unlinked; any thread may free a node.
        unsafe { section.defer(move || free(node)) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        replace_and_await(self.0, || self.replace(key), E::hurry)
    }

    fn drain(&mut self) {
        E::hurry();
    }
}
