// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handle by which a structure names its domain.
//!
//! > **Invariant.** A handle names one domain for as long as it exists, and that domain exists as
//! > long.
//!
//! The id of a guard's domain, compared with the handle's, thus tells whether the guard keeps alive
//! what is in the structure. Hence the trait is sealed; a `Deref` of a user's could name another
//! domain each time.

use crate::domain::Domain;
use crate::domain::default::DefaultDomain;
use crate::read::guard::{Guard, ReadSide};
use crate::read::protected::Protected;
use crate::read::restart::section::Section;
use crate::read::restart::traversal::{self, Pace};
use crate::read::restart::{Lookup, Names};
use crate::thread::id::DomainId;
use crate::thread::slots::Slots;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The default domain, [`Domain::global`], as a handle: known when the program is compiled, so
/// reads need not look it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global;

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed: Send + Sync {
        fn id(&self) -> DomainId;
        fn read(&self) -> Guard<'_>;
        /// # Safety
        /// As for [`Domain::lookup`].
        unsafe fn lookup<L: Lookup>(&self, lookup: &L) -> L::Output;
        /// # Safety
        /// As for [`Domain::protect`].
        unsafe fn protect<T: 'static, L: Lookup<Output = *const T>>(
            &self,
            lookup: &L,
        ) -> Option<Protected<'_, T>>;
    }
}
use sealed::Sealed;

/// A way to own or borrow the domain of a structure: [`Global`], `&Domain` or `Arc<Domain>`.
///
/// A domain goes with its last `Arc`. That may be one in a value that a callback drops: a thread
/// waits for the domain's own callbacks then, and `Domain::drop` returns at once.
pub trait Handle: Sealed {
    /// The domain.
    fn domain(&self) -> &Domain;
}

impl Handle for Global {
    fn domain(&self) -> &Domain {
        Domain::global()
    }
}

impl Sealed for Global {
    #[inline(always)]
    fn id(&self) -> DomainId {
        DomainId::GLOBAL
    }

    #[inline(always)]
    fn read(&self) -> Guard<'_> {
        crate::domain::default::read_lock()
    }

    #[inline(always)]
    unsafe fn lookup<L: Lookup>(&self, lookup: &L) -> L::Output {
        // SAFETY: the caller's promise.
        unsafe { crate::domain::default::lookup(lookup) }
    }

    #[inline(always)]
    unsafe fn protect<T: 'static, L: Lookup<Output = *const T>>(
        &self,
        lookup: &L,
    ) -> Option<Protected<'_, T>> {
        // SAFETY: the caller's promise.
        unsafe { crate::domain::default::protect(lookup) }
    }
}

macro_rules! handles {
    ($($type:ty),*) => { $(
        impl Handle for $type {
            fn domain(&self) -> &Domain {
                self
            }
        }

        impl Sealed for $type {
            #[inline(always)]
            fn id(&self) -> DomainId {
                Domain::id(self)
            }

            #[inline(always)]
            fn read(&self) -> Guard<'_> {
                self.read_lock()
            }

            #[inline(always)]
            unsafe fn lookup<L: Lookup>(&self, lookup: &L) -> L::Output {
                // SAFETY: the caller's promise.
                unsafe { Domain::lookup(self, lookup) }
            }

            #[inline(always)]
            unsafe fn protect<T: 'static, L: Lookup<Output = *const T>>(&self, lookup: &L) -> Option<Protected<'_, T>> {
                // SAFETY: the caller's promise.
                unsafe { Domain::protect(self, lookup) }
            }
        }
    )* };
}

handles!(&Domain, Arc<Domain>);

/// The calling thread's slots.
pub(crate) fn slots(handle: &impl Handle) -> &'static Slots {
    &crate::thread::record(handle.id().index()).slots
}

/// # Safety
/// As for [`traversal::protect_part`].
pub(crate) unsafe fn protect_part<L: Lookup<Output: Names>>(
    handle: &impl Handle,
    pace: &Pace,
    slot: &AtomicUsize,
    part: impl Fn(usize) -> L,
) -> L::Output {
    // SAFETY: the caller's promise.
    unsafe {
        if handle.id() == DomainId::GLOBAL {
            traversal::protect_part(DefaultDomain, pace, slot, part)
        } else {
            traversal::protect_part(handle.domain(), pace, slot, part)
        }
    }
}

/// Protects a node that the caller has not published yet, or has unlinked and not retired yet: the
/// slot is filled before anybody looks for the node in slots.
///
/// # Safety
/// The node is retired through this domain, by the caller or after the caller has published it.
pub(crate) unsafe fn protect_own<T>(handle: &impl Handle, node: *mut T) -> Protected<'_, T> {
    let slot = slots(handle).free();
    slot.store(node.expose_provenance(), Ordering::Release);
    // SAFETY: in the slot before it can be freed; not null.
    unsafe { Protected::new(NonNull::new_unchecked(node), slot) }
}

/// Panics unless the guard is one of the structure's domain.
#[inline(always)]
#[track_caller]
pub(crate) fn check(handle: &impl Handle, guard: &impl ReadSide) {
    if handle.id() != guard.domain() {
        wrong_domain();
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn wrong_domain() -> ! {
    panic!("the guard belongs to another domain than the structure: it keeps nothing in it alive");
}

/// Protects a node that a plain section keeps alive now. The slot is filled before that section
/// ends, so a reclaimer that waits for the section finds the slot filled.
///
/// # Safety
/// The caller is in a plain section of the handle's domain in which it found the node (not null),
/// which is freed through [`super::node::retire`].
pub(crate) unsafe fn protect_found<T: 'static>(
    handle: &impl Handle,
    node: *const T,
) -> Protected<'_, T> {
    struct Found<T>(*const T);
    // SAFETY: returns a constant.
    unsafe impl<T> Lookup for Found<T> {
        type Output = *const T;
        const UNOPTIMIZED: bool = true;

        #[inline(always)]
        unsafe fn run(&self, _: &Section) -> *const T {
            self.0
        }
    }
    // SAFETY: the caller's promise.
    match unsafe { handle.protect(&Found(node)) } {
        Some(protected) => protected,
        None => unreachable!("the node is not null"),
    }
}
