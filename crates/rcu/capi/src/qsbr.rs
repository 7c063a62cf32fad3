// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that announce quiescent states: a domain of its own, so that an online thread may wait
//! for grace periods of the default one.
//!
//! An online thread is inside one section all the time; a quiescent state ends it and begins the
//! next. What waits for a grace period of this domain takes an online thread offline meanwhile, as
//! liburcu does.
//!
//! A callback of this domain reads as an online thread does, without entering anything. So whoever
//! runs it is online meanwhile ([`run_online`]), as liburcu's threads are.

use reprieve_core::{Domain, DomainId, Engine, Function, Head, abi};
use std::ffi::c_int;
use std::ptr::{null_mut, without_provenance};
use std::sync::atomic::{AtomicPtr, Ordering};

static DOMAIN: AtomicPtr<Domain> = AtomicPtr::new(null_mut());

pub(crate) fn domain() -> &'static Domain {
    // SAFETY: null or a domain that is never dropped.
    unsafe { DOMAIN.load(Ordering::Acquire).as_ref() }.unwrap_or_else(make)
}

/// Not a `OnceLock`: a fork in the middle would leave the child's locked.
#[cold]
fn make() -> &'static Domain {
    let built = Domain::builder().engine(Engine::Poll).build().expect("a domain for QSBR");
    let made = Box::into_raw(Box::new(built));
    match DOMAIN.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: never dropped from here on.
        Ok(_) => unsafe { &*made },
        Err(first) => {
            // SAFETY: ours, and nobody knows it; the first is never dropped.
            unsafe {
                drop(Box::from_raw(made));
                &*first
            }
        }
    }
}

fn id() -> DomainId {
    domain().id()
}

/// Runs `f` with this thread offline.
fn offline<R>(f: impl FnOnce(&Domain) -> R) -> R {
    let online = abi::nesting(id()) == 1;
    if online {
        // SAFETY: C has no guards.
        unsafe { abi::leave(id()) };
    }
    let result = f(domain());
    if online {
        abi::enter(id());
    }
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_online() {
    if abi::nesting(id()) == 0 {
        abi::enter(id());
    }
    abi::announce_in_line(id());
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_offline() {
    if abi::nesting(id()) == 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { abi::leave(id()) };
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_ongoing() -> c_int {
    (abi::nesting(id()) != 0).into()
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_quiescent_state_slow() {
    // SAFETY: as above.
    unsafe { abi::quiesce(id()) };
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_synchronize() {
    offline(crate::synchronize);
}

/// # Safety
/// As `reprieve_call`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_qsbr_call(head: *mut Head, function: Function, bytes: usize) {
    // No slot of this domain is ever filled, so a head's node is free for the function.
    let node = without_provenance(function as usize);
    abi::release();
    // SAFETY: the caller's promise; no slot holds the node, so the callback waits for none.
    unsafe { domain().retire(node, head, run_online, bytes, false) }
}

/// Runs what `reprieve_qsbr_call` registered. Neither a worker nor a caller of `barrier` is online
/// here; the callback may have changed that when it returns.
unsafe extern "C" fn run_online(head: *mut Head) {
    reprieve_qsbr_online();
    // SAFETY: the head was registered above, with a function as its node; the registrant answers
    // for the call.
    unsafe {
        let function = std::mem::transmute::<*const (), Function>(abi::node(head));
        function(head);
    }
    reprieve_qsbr_offline();
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_barrier() -> c_int {
    offline(crate::barrier)
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_start_poll() -> u64 {
    abi::number(domain().start_poll())
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_poll(cookie: u64) -> c_int {
    crate::poll(domain(), cookie)
}
