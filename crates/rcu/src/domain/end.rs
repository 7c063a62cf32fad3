// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a domain: its callbacks have run, its threads are gone, its index is free.
//!
//! Whoever drops the last owner waits for that. A callback may not: it would wait for itself, or
//! for callbacks behind it, and its worker has other callbacks to run. The last owner of a domain
//! may well be in a node that a callback frees (a structure with an `Arc<Domain>` of its own), so a
//! thread is started that waits in the callback's place. One thread for each such domain: the
//! callbacks of one may wait for the end of another.
//!
//! The child of a fork has no thread that was ending a domain: such a domain stays there, leaked.

use super::{Domain, table};
use crate::callback::reclaimer::Reclaimer;
use crate::platform::sys;
use crate::thread;
use std::sync::Arc;

/// Ends the domain, now or, if this is a callback, soon.
pub(super) fn end(reclaimer: &Arc<Reclaimer>) {
    if !thread::in_callback() {
        return wait(reclaimer);
    }
    let own = reclaimer.clone();
    if !elsewhere(move || wait(&own)) {
        // The domain stays, as a leak: the table leads to it.
        std::mem::forget(reclaimer.clone());
    }
}

/// The same of a domain that its own callbacks use by the address of the box, until it has ended.
pub(crate) fn end_boxed(domain: Box<Domain>) {
    if !thread::in_callback() {
        return drop(domain);
    }
    let domain = Box::leak(domain);
    // SAFETY: a box until just now, and nobody else's.
    elsewhere(move || drop(unsafe { Box::from_raw(domain) }));
}

/// Runs `f` on a thread of its own. False if the system refuses one.
fn elsewhere(f: impl FnOnce() + Send + 'static) -> bool {
    thread::start(format_args!("reprieve-end"), f).map(sys::Thread::detach).is_some()
}

fn wait(reclaimer: &Arc<Reclaimer>) {
    reclaimer.close(|| table::withdraw(reclaimer));
    table::free(reclaimer.index());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, Weak};
    use std::time::Duration;

    /// Returns when the domain has ended. (If it stays the test hangs.)
    fn await_end(reclaimer: &Weak<Reclaimer>, index: usize) {
        while reclaimer.strong_count() != 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let entry = table::DOMAINS[index].load(Ordering::Acquire);
        assert!(!std::ptr::eq(entry, reclaimer.as_ptr()), "the index is not free");
    }

    fn domain() -> (Domain, Weak<Reclaimer>, usize) {
        let domain = Domain::builder().build().unwrap();
        let (reclaimer, index) = (Arc::downgrade(domain.reclaimer()), domain.id().index());
        (domain, reclaimer, index)
    }

    /// Has the domain run a callback, and start the thread for grace periods; the callback's flag.
    fn use_it(domain: &Domain) -> Arc<AtomicBool> {
        let ran = Arc::new(AtomicBool::new(false));
        let flag = ran.clone();
        domain.defer(move || flag.store(true, Ordering::SeqCst));
        domain.start_poll();
        ran
    }

    #[test]
    fn a_callback_of_another_domain_drops_the_last_owner() {
        let (outer, ..) = domain();
        let (inner, reclaimer, index) = domain();
        let ran = use_it(&inner);
        outer.defer(move || drop(inner));
        await_end(&reclaimer, index);
        assert!(ran.load(Ordering::SeqCst));
    }

    #[test]
    fn a_callback_of_the_domain_itself_drops_the_last_owner() {
        let (domain, reclaimer, index) = domain();
        let domain = Arc::new(domain);
        let ran = use_it(&domain);
        let (tell, told) = channel();
        let last = domain.clone();
        domain.defer(move || {
            told.recv().unwrap();
            drop(last);
        });
        drop(domain);
        tell.send(()).unwrap();
        await_end(&reclaimer, index);
        assert!(ran.load(Ordering::SeqCst));
    }

    /// The worker whose callback forked goes on in the child, where nobody can join it. Not beyond
    /// the end of its domain: another one may have the domain's index then.
    #[test]
    fn in_the_child_of_a_callback_a_domain_ends_after_its_worker() {
        static DOMAIN: Mutex<Option<Domain>> = Mutex::new(None);
        const CALLBACKS: u64 = 1000;
        fn ends_and_begins_anew() -> bool {
            let domain = DOMAIN.lock().unwrap().take().unwrap();
            let index = domain.id().index();
            drop(domain);
            // The parent's other domains have an index each.
            let mut others = Vec::new();
            let next = loop {
                let next = Domain::builder().build().unwrap();
                if next.id().index() == index {
                    break next;
                }
                others.push(next);
            };
            let ran = Arc::new(AtomicU64::new(0));
            for _ in 0..CALLBACKS {
                let ran = ran.clone();
                next.defer(move || _ = ran.fetch_add(1, Ordering::SeqCst));
            }
            next.barrier().is_ok() && ran.load(Ordering::SeqCst) == CALLBACKS
        }
        extern "C" fn in_the_child(_: *mut libc::c_void) -> *mut libc::c_void {
            let well = ends_and_begins_anew();
            // SAFETY: the child runs no destructors.
            unsafe { libc::_exit(if well { 0 } else { 1 }) }
        }
        for _ in 0..20 {
            let (go, wait) = channel();
            let (forked, told) = channel();
            let domain = Domain::builder().build().unwrap();
            domain.defer(move || {
                wait.recv().unwrap();
                // SAFETY: the C library makes malloc and its threads usable in the child, which
                // ends with its parent, should the test be killed.
                unsafe {
                    let child = libc::fork();
                    if child != 0 {
                        return forked.send(child).unwrap();
                    }
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    // Its end takes a lock, which the parent's receiver may have had at the fork.
                    std::mem::forget(forked);
                    let mut thread = std::mem::zeroed();
                    let (attributes, null) = (std::ptr::null(), std::ptr::null_mut());
                    if libc::pthread_create(&mut thread, attributes, in_the_child, null) != 0 {
                        libc::_exit(2);
                    }
                }
            });
            *DOMAIN.lock().unwrap() = Some(domain);
            go.send(()).unwrap();
            let child = told.recv().unwrap();
            let mut status = -1;
            // SAFETY: waits for a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            drop(DOMAIN.lock().unwrap().take());
        }
    }
}
