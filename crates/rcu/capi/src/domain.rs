// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains of one's own, for C.

use reprieve_core::{Domain, Engine, Function, Head, abi};
use std::ffi::{c_int, c_uint};
use std::time::Duration;

/// A domain, or null if the engine is unknown or too many exist.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_domain_new(engine: c_uint, tick_us: c_uint) -> *mut Domain {
    let tick = Duration::from_micros(tick_us.max(1).into());
    let engine = match engine {
        0 => Engine::Restart,
        1 => Engine::Poll,
        2 => Engine::Ltimer { tick },
        3 => Engine::Sched { tick },
        _ => return std::ptr::null_mut(),
    };
    match Domain::builder().engine(engine).build() {
        Ok(domain) => Box::into_raw(Box::new(domain)),
        Err(_) => std::ptr::null_mut(),
    }
}

/// # Safety
/// `domain` is null, or from `reprieve_domain_new`, and used by its own callbacks only from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_free(domain: *mut Domain) {
    if domain.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    abi::outside(
        unsafe { &*domain }.id(),
        "a thread frees a domain inside a read-side section of it",
    );
    // SAFETY: as above.
    abi::end(unsafe { Box::from_raw(domain) });
}

/// # Safety
/// `domain` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_read_lock(domain: *const Domain) {
    // SAFETY: the caller's promise.
    abi::enter(unsafe { &*domain }.id());
}

/// # Safety
/// `domain` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_read_unlock(domain: *const Domain) {
    // SAFETY: the caller's promise; C has no guards.
    unsafe { abi::leave((*domain).id()) };
}

/// # Safety
/// `domain` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_synchronize(domain: *const Domain) {
    // SAFETY: the caller's promise.
    crate::synchronize(unsafe { &*domain });
}

/// # Safety
/// As `reprieve.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_call(
    domain: *const Domain,
    head: *mut Head,
    function: Function,
    bytes: usize,
) {
    // SAFETY: the caller's promise.
    unsafe { crate::call(&*domain, head, function, bytes) }
}

/// # Safety
/// `domain` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_domain_barrier(domain: *const Domain) -> c_int {
    // SAFETY: the caller's promise.
    crate::barrier(unsafe { &*domain })
}
