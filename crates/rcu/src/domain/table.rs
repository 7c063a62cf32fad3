// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of all domains, for the fork handlers and for other processes that look in.

use crate::callback::reclaimer::Reclaimer;
use crate::platform::fork;
use crate::thread::id::MAX_DOMAINS;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Domains by index. `RESERVED` while one comes or goes.
pub(crate) static DOMAINS: [AtomicPtr<Reclaimer>; MAX_DOMAINS] =
    [const { AtomicPtr::new(null_mut()) }; MAX_DOMAINS];
const RESERVED: *mut Reclaimer = std::ptr::without_provenance_mut(align_of::<Reclaimer>());

/// All domains there are. For fork handlers: nothing keeps a domain from going otherwise.
pub(super) fn all() -> impl Iterator<Item = &'static Reclaimer> {
    DOMAINS.iter().map(|c| c.load(Ordering::Acquire)).filter(|&c| c != RESERVED).filter_map(|c| {
        // SAFETY: a pointer in the table leads to a live domain; it is taken out, under the fork
        // lock, before the domain goes.
        unsafe { c.as_ref() }
    })
}

/// Takes a free index, other than that of the default domain.
pub(super) fn reserve() -> Option<usize> {
    let take = |entry: &AtomicPtr<Reclaimer>| {
        entry.compare_exchange(null_mut(), RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    (1..MAX_DOMAINS).find(|&i| take(&DOMAINS[i]))
}

/// Makes a domain known to the fork handlers, not in the middle of a fork: they undo what they did
/// to the domains they saw.
pub(super) fn publish(reclaimer: &Arc<Reclaimer>) {
    publish_if(reclaimer, || ((), true));
}

/// The same if `f` says so, which runs while there is no fork.
pub(super) fn publish_if<R>(reclaimer: &Arc<Reclaimer>, f: impl FnOnce() -> (R, bool)) -> R {
    fork::excluded(|| {
        let (result, publish) = f();
        if publish {
            fork::enter(fork::Part::Domains, &super::fork::HANDLERS);
            DOMAINS[reclaimer.index()].store(Arc::as_ptr(reclaimer).cast_mut(), Ordering::Release);
        }
        result
    })
}

/// Takes a domain that is being dropped from the fork handlers, none of which may be between its
/// two ends. Its index is not free yet.
pub(super) fn withdraw(reclaimer: &Reclaimer) {
    fork::excluded(|| DOMAINS[reclaimer.index()].store(RESERVED, Ordering::Release));
}

/// The index of a withdrawn domain is free.
pub(super) fn free(index: usize) {
    DOMAINS[index].store(null_mut(), Ordering::Release);
}
