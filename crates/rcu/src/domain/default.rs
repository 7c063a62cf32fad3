// SPDX-License-Identifier: MIT OR Apache-2.0
//! The default domain, and the free functions that use it.

use super::{Domain, table};
use crate::error::Error;
use crate::platform::barrier::Kind;
use crate::platform::facts;
use crate::read::guard::Guard;
use crate::read::protected::Protected;
use crate::read::restart::{self, Lookup, LookupDomain};
use crate::thread::head::{Function, Head};
use crate::thread::id::DomainId;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The default domain, once somebody has asked for it.
static GLOBAL: AtomicPtr<Domain> = AtomicPtr::new(null_mut());

impl Domain {
    /// The default domain: [`Engine::Restart`](crate::Engine::Restart), default cap. The free
    /// functions of the crate use it.
    #[inline]
    pub fn global() -> &'static Domain {
        // SAFETY: null or a domain that is never dropped.
        unsafe { GLOBAL.load(Ordering::Acquire).as_ref() }.unwrap_or_else(Domain::make_global)
    }

    #[cold]
    fn make_global() -> &'static Domain {
        // Not a `OnceLock`: after a fork in the middle it would stay locked in the child.
        let made = Box::into_raw(Box::new(Domain::builder().build_at(0)));
        // SAFETY: fresh, and never dropped.
        let reclaimer = unsafe { &(*made).reclaimer };
        // Users and fork handlers learn of it at the same time: a fork in between would not put the
        // domain right in the child.
        let first = table::publish_if(reclaimer, || {
            GLOBAL
                .compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire)
                .map_or_else(|first| (first, false), |_| (made, true))
        });
        // SAFETY: never dropped. If it is not ours, ours is a leak: it has no threads yet, and this
        // happens once at most per thread.
        unsafe { &*first }
    }
}

/// The default domain, whose index is a constant.
pub(crate) struct DefaultDomain;

impl LookupDomain for DefaultDomain {
    const DEFAULT: bool = true;

    #[inline(always)]
    fn index(&self) -> usize {
        0
    }

    /// Does not ask the domain, which may not exist yet: making it would allocate, and the caller
    /// may be a signal handler. `facts::barrier` gives the domain the same answer when it is made.
    fn may_restart(&self) -> bool {
        facts::barrier(true) == Kind::Restart
    }
}

/// Begins a plain section of the default domain. See [`Domain::read_lock`].
#[inline(always)]
pub fn read_lock() -> Guard<'static> {
    Guard::new(DomainId::GLOBAL)
}

/// Runs a restartable lookup in the default domain.
///
/// # Safety
/// As for [`Domain::lookup`].
#[inline(always)]
pub unsafe fn lookup<L: Lookup>(lookup: &L) -> L::Output {
    // SAFETY: the caller's promise.
    unsafe { restart::lookup(DefaultDomain, lookup) }
}

/// Finds and protects a node of the default domain.
///
/// # Safety
/// As for [`Domain::protect`].
#[inline(always)]
pub unsafe fn protect<T, L: Lookup<Output = *const T>>(
    lookup: &L,
) -> Option<Protected<'static, T>> {
    // SAFETY: the caller's promise; the node found is in the slot.
    unsafe {
        let (node, slot) = restart::protect(DefaultDomain, lookup);
        NonNull::new(node.cast_mut()).map(|node| Protected::new(node, slot))
    }
}

/// Waits for a grace period of the default domain. See [`Domain::synchronize`].
pub fn synchronize_rcu() {
    Domain::global().synchronize();
}

/// [`synchronize_rcu`] under the name it has in the FREENIX 2003 paper.
pub fn synchronize_kernel() {
    synchronize_rcu();
}

/// See [`Domain::synchronize_expedited`].
pub fn synchronize_rcu_expedited() {
    Domain::global().synchronize_expedited();
}

/// Registers a callback in the default domain.
///
/// # Safety
/// As for [`Domain::call_rcu`].
pub unsafe fn call_rcu(head: *mut Head, function: Function, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { Domain::global().call_rcu(head, function, bytes) }
}

/// Waits for the callbacks of the default domain. See [`Domain::barrier`].
///
/// # Errors
/// As [`Domain::barrier`].
pub fn rcu_barrier() -> Result<(), Error> {
    Domain::global().barrier()
}
