// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain read-side sections as values: [`Guard`] (`rcu_read_lock`/`rcu_read_unlock`), [`Qsbr`]
//! (quiescent states announced by the thread). Neither can be sent to another thread: each refers
//! to the record of its own thread.

use crate::platform::barrier::light;
use crate::read::restart::section::Section;
use crate::thread::id::DomainId;
use crate::thread::record::Record;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

/// A value that keeps this thread in a read-side section of a domain for as long as it lives.
///
/// # Safety
/// From the moment the value exists until it is dropped, no grace period of the domain that began
/// in between ends; if it is never dropped, none does until the domain is.
pub unsafe trait ReadSide {
    /// The loads that are sound in this section.
    fn section(&self) -> &Section;

    /// The domain.
    fn domain(&self) -> DomainId;
}

/// A plain section: it ends when the guard is dropped. Nestable; guards may be dropped in any
/// order.
///
/// A guard that is leaked (`mem::forget`, `Box::leak`) keeps its section open until the domain is
/// dropped, also when its thread ends: references from it may be anywhere. Grace periods of the
/// domain wait for it until then, those of the default domain for ever, and report it.
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard<'d> {
    record: &'static Record,
    id: DomainId,
    section: Section,
    domain: PhantomData<(&'d (), *mut ())>,
}

impl Guard<'_> {
    #[inline(always)]
    pub(crate) fn new<'d>(id: DomainId) -> Guard<'d> {
        let record = crate::thread::enter(id.index());
        Guard { record, id, section: Section::new(), domain: PhantomData }
    }
}

// SAFETY: the record says so until `leave`.
unsafe impl ReadSide for Guard<'_> {
    #[inline(always)]
    fn section(&self) -> &Section {
        &self.section
    }

    #[inline(always)]
    fn domain(&self) -> DomainId {
        self.id
    }
}

impl Drop for Guard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.record.leave();
    }
}

/// A thread that is inside a section except when it announces that it is not. Its reads then cost
/// nothing.
///
/// While it is online and announces no quiescent states, no grace period of the domain ends. If it
/// is leaked, none does after the thread has ended, as with a leaked [`Guard`].
#[must_use = "the thread goes offline when this is dropped"]
pub struct Qsbr<'d> {
    record: &'static Record,
    id: DomainId,
    fenced: bool,
    domain: PhantomData<(&'d (), *mut ())>,
}

impl<'d> Qsbr<'d> {
    pub(crate) fn new(id: DomainId) -> Qsbr<'d> {
        let record = crate::thread::enter(id.index());
        Qsbr { record, id, fenced: crate::platform::facts::fenced(), domain: PhantomData }
    }

    /// A section, at no cost. It is bound to this borrow, so no reference outlives the next
    /// quiescent state.
    #[inline(always)]
    pub fn read_lock(&self) -> QsbrGuard<'_> {
        QsbrGuard { id: self.id, section: Section::new(), online: PhantomData }
    }

    /// Announces that this thread holds no references: grace periods need not wait for its reads
    /// before. Without effect while the thread is inside other sections of the domain as well.
    #[inline(always)]
    pub fn quiescent_state(&mut self) {
        self.record.quiesce();
        self.begin();
    }

    #[inline(always)]
    fn begin(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        } else {
            light();
        }
    }

    /// Runs `f` with this thread offline, for work that takes long or blocks.
    pub fn offline<R>(&mut self, f: impl FnOnce() -> R) -> R {
        /// Online again even if `f` panics.
        struct Online<'a, 'd>(&'a mut Qsbr<'d>);
        impl Drop for Online<'_, '_> {
            fn drop(&mut self) {
                self.0.record.enter();
                self.0.begin();
            }
        }
        self.record.leave();
        let _online = Online(self);
        f()
    }
}

impl Drop for Qsbr<'_> {
    fn drop(&mut self) {
        self.record.leave();
    }
}

/// A section of an online thread.
pub struct QsbrGuard<'q> {
    id: DomainId,
    section: Section,
    online: PhantomData<(&'q (), *mut ())>,
}

// SAFETY: it borrows an online `Qsbr`, whose quiescent states need it mutably.
unsafe impl ReadSide for QsbrGuard<'_> {
    #[inline(always)]
    fn section(&self) -> &Section {
        &self.section
    }

    #[inline(always)]
    fn domain(&self) -> DomainId {
        self.id
    }
}
