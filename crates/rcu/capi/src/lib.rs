// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions behind `include/reprieve/*.h`: everything that the headers do not do in line. The
//! headers are the documentation.
//!
//! A promise broken by the caller that the runtime notices (waiting for a grace period inside a
//! section, an unlock too many) ends the process with one line that names it.

mod domain;
mod flavor;
mod helper;
mod hint;
mod maps;
mod qsbr;
mod stall;

use reprieve_core::{Domain, Function, Head, Restartable, abi};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Version of the layouts in `abi.h`.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_abi_version() -> c_uint {
    4
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_register_thread() {
    abi::register(abi::GLOBAL);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_read_lock_slow() {
    abi::enter(abi::GLOBAL);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_read_unlock_slow() {
    // SAFETY: C has no guards.
    unsafe { abi::leave(abi::GLOBAL) };
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_read_ongoing() -> c_int {
    (abi::nesting(abi::GLOBAL) != 0).into()
}

/// For thread sanitizers, which headers serve in line.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_annotate_release() {
    abi::release();
}

/// A fence, which a thread sanitizer does not see.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_annotate_fence() {
    abi::release();
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    abi::acquire();
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_restart_slow(attempt: c_uint) -> usize {
    abi::restart(attempt)
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_fallback() {
    abi::count_fallback();
    abi::enter(abi::GLOBAL);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_slot_slow() -> *mut usize {
    abi::slot().cast_mut().cast()
}

/// A thread that is in a section would wait for itself.
fn before_waiting(domain: &Domain) {
    abi::outside(
        domain.id(),
        "a thread waits for a grace period inside a read-side section of the same domain",
    );
}

fn synchronize(domain: &Domain) {
    before_waiting(domain);
    domain.synchronize();
    abi::acquire();
}

fn poll(domain: &Domain, cookie: u64) -> c_int {
    let done = domain.poll(abi::cookie(domain.id(), cookie));
    if done {
        abi::acquire();
    }
    done.into()
}

/// Registers a callback.
///
/// # Safety
/// As `reprieve.h` says.
unsafe fn call(domain: &Domain, head: *mut Head, function: Function, bytes: usize) {
    abi::release();
    // SAFETY: the caller's promise.
    unsafe { domain.call_rcu(head, function, bytes) }
}

/// 0, or `EDEADLK` as `reprieve.h` says.
fn barrier(domain: &Domain) -> c_int {
    if !abi::in_callback() {
        abi::outside(
            domain.id(),
            "a thread waits for callbacks inside a read-side section of the same domain",
        );
    }
    let result = domain.barrier();
    abi::acquire();
    if result.is_ok() { 0 } else { libc::EDEADLK }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_synchronize() {
    synchronize(Domain::global());
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_synchronize_expedited() {
    before_waiting(Domain::global());
    Domain::global().synchronize_expedited();
    abi::acquire();
}

/// The default domain is there before `main`: a call that registers a callback may find no memory.
/// (Behind the library's own start-up.)
#[used]
#[unsafe(link_section = ".init_array.00100")]
static MAKE_DOMAIN: extern "C" fn() = make_domain;

extern "C" fn make_domain() {
    Domain::global();
}

/// # Safety
/// As `reprieve.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_call(head: *mut Head, function: Function, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { call(Domain::global(), head, function, bytes) }
}

const LEAF: c_uint = 1;

/// # Safety
/// As `reprieve.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_retire(
    node: *const c_void,
    head: *mut Head,
    function: Function,
    bytes: usize,
    flags: c_uint,
) {
    // SAFETY: the caller's promise.
    unsafe { Domain::global().retire(node.cast(), head, function, bytes, flags & LEAF != 0) }
}

/// 0, or `EDEADLK` in a callback, or if one of the callbacks waits for a node that this thread
/// protects.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_barrier() -> c_int {
    barrier(Domain::global())
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_cookie() -> u64 {
    abi::number(Domain::global().cookie())
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_start_poll() -> u64 {
    abi::number(Domain::global().start_poll())
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_poll(cookie: u64) -> c_int {
    poll(Domain::global(), cookie)
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_cond_synchronize(cookie: u64) {
    if reprieve_poll(cookie) == 0 {
        before_waiting(Domain::global());
        Domain::global().cond_synchronize(abi::cookie(Domain::global().id(), cookie));
        abi::acquire();
    }
}

/// Mirrors `struct reprieve_stats`.
#[repr(C)]
pub struct Stats {
    grace_periods: u64,
    waiting: u64,
    waiting_bytes: u64,
    run: u64,
    over_cap: u64,
    helped: u64,
    restarts: u64,
    fallbacks: u64,
    threads: u64,
    stalls: u64,
    forgotten: u64,
    visits: u64,
}

/// # Safety
/// `stats` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_get_stats(stats: *mut Stats) {
    let s = Domain::global().stats();
    let copy = Stats {
        grace_periods: s.grace_periods.count,
        waiting: s.waiting,
        waiting_bytes: s.waiting_bytes,
        run: s.run,
        over_cap: s.over_cap,
        helped: s.helped,
        restarts: s.restarts,
        fallbacks: s.fallbacks,
        threads: s.threads,
        stalls: s.stalls,
        forgotten: s.forgotten,
        visits: s.visits,
    };
    // SAFETY: the caller's promise.
    unsafe { stats.write(copy) }
}

/// 1 if lookups restart, else 0; `why`, if not null, gets a string that says why.
///
/// # Safety
/// `why` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_restartable(why: *mut *const c_char) -> c_int {
    let restartable = reprieve_core::support().restartable;
    if !why.is_null() {
        // SAFETY: the caller's promise.
        unsafe { why.write(abi::restartable_reason(restartable).as_ptr()) };
    }
    (restartable == Restartable::Yes).into()
}
