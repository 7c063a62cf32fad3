// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions that the C ABI (package `reprieve-capi`) needs beyond the public interface. Not for
//! other users, and not stable.
//!
//! C counts its sections itself, without guards: entering one is safe, ending one that a guard
//! relies on is not. A domain is named by its id, whose index is always within the tables.
//!
//! The headers repeat the layout of the thread's block and of a record, so that C can inline the
//! fast paths. The assertions here fail when either changes: then `include/reprieve/abi.h` must
//! change too, and its version.

use crate::domain::default::DefaultDomain;
use crate::domain::{Cookie, Domain, end};
use crate::platform::annotate;
use crate::platform::barrier::light;
use crate::platform::facts::{self, Restartable};
use crate::platform::sys;
use crate::read::restart::{RESTARTS, count, find_restart};
use crate::structures::map::Held;
use crate::thread::head::Head;
use crate::thread::id::DomainId;
use crate::thread::record::Record;
use crate::thread::{self, Thread};
use std::ffi::CStr;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

// As `abi.h` has it.
const _: () = assert!(
    offset_of!(Thread, stack) == 0
        && Thread::CS == 8
        && offset_of!(Thread, saved) == 16
        && offset_of!(Thread, shared) == 48
        && offset_of!(Thread, online) == 56
        && Record::WORD == 0
        && offset_of!(Record, restart) == 8
        && offset_of!(Record, slots) == 32
        && Record::SNAPSHOT == 264
);

/// Why lookups restart, or why not.
pub fn restartable_reason(restartable: Restartable) -> &'static CStr {
    facts::reason(restartable)
}

/// Distance from the thread pointer of the word that holds the address of the thread's record in
/// the default domain (`reprieve_thread.record`), for those who look at readers from outside. 0
/// where it is not constant.
pub fn reader_offset() -> isize {
    thread::reader_offset()
}

/// The default domain.
pub const GLOBAL: DomainId = DomainId::GLOBAL;

/// For thread sanitizers: this thread waits for what others have done before [`release`].
pub fn acquire() {
    annotate::acquire(annotate::clock());
}

/// See [`acquire`].
pub fn release() {
    annotate::release(annotate::clock());
}

/// The same of a lock.
pub fn acquire_lock<T>(lock: *const T) {
    annotate::acquire(lock.addr());
}

/// See [`acquire_lock`].
pub fn release_lock<T>(lock: *const T) {
    annotate::release(lock.addr());
}

/// Enters a plain section of the domain; registers the thread if need be. Unlike a guard's, it ends
/// with the thread, if the thread has used no guards of the domain.
pub fn enter(domain: DomainId) {
    thread::unguarded(domain.index()).enter();
    begin();
}

/// A section begins.
fn begin() {
    if facts::fenced() {
        fence(Ordering::SeqCst);
    }
    light();
}

/// Leaves one. One too many ends the process, except where the thread exits, which has ended its
/// sections.
///
/// ```compile_fail,E0133
/// let guard = reprieve::read_lock();
/// reprieve::abi::leave(reprieve::abi::GLOBAL);
/// drop(guard);
/// ```
///
/// # Safety
/// No [`Guard`](crate::Guard) and no [`Qsbr`](crate::Qsbr) of this thread relies on the section: it
/// was entered by [`enter`].
pub unsafe fn leave(domain: DomainId) {
    let record = thread::existing(domain.index());
    match record.filter(|r| r.nesting() != 0) {
        Some(record) => {
            release();
            record.leave();
        }
        None if thread::exiting() => {}
        None => sys::die("underflow: a thread leaves a read-side section that it has not entered"),
    }
}

/// Ends the process with `message` if this thread is in a section of the domain. A panic would
/// print a backtrace, which tells C programs nothing.
pub fn outside(domain: DomainId, message: &str) {
    if nesting(domain) != 0 {
        sys::die(message);
    }
}

/// How deep this thread is nested in sections of the domain.
pub fn nesting(domain: DomainId) -> u32 {
    thread::existing(domain.index()).map_or(0, Record::nesting)
}

/// Registers this thread.
pub fn register(domain: DomainId) {
    thread::unguarded(domain.index());
}

/// From now on C announces this thread's quiescent states of the domain in line, where announcing
/// takes no fence: it calls [`quiesce`] only if a grace period waits for the thread.
pub fn announce_in_line(domain: DomainId) {
    let record = thread::fast_unguarded(domain.index());
    let record = record.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the block is this thread's own.
    unsafe { (*thread::this()).online = record };
}

/// Ends one section of the domain and begins the next, if this thread is nested exactly once.
///
/// ```compile_fail,E0133
/// let guard = reprieve::read_lock();
/// reprieve::abi::quiesce(reprieve::abi::GLOBAL);
/// drop(guard);
/// ```
///
/// # Safety
/// As for [`leave`].
pub unsafe fn quiesce(domain: DomainId) {
    let record = thread::existing(domain.index());
    if let Some(record) = record.filter(|r| r.nesting() == 1) {
        release();
        record.quiesce();
        begin();
    }
}

/// This thread's `rseq_cs` field for another attempt at a lookup in the default domain, or 0: use a
/// plain section. `attempt` counts the attempts that were sent back.
pub fn restart(attempt: u32) -> usize {
    let record = thread::unguarded(0);
    if attempt != 0 {
        count(&record.restarts);
    }
    if thread::entered() {
        // This is a signal handler that interrupted an attempt, whose frame `stack` points to.
        return 0;
    }
    let cs = match record.restart.load(Ordering::Relaxed) {
        0 => find_restart(record, &DefaultDomain),
        cs => cs,
    };
    thread::set_cs(cs);
    if attempt > RESTARTS { 0 } else { cs }
}

/// A lookup runs in a plain section instead.
pub fn count_fallback() {
    count(&thread::unguarded(0).fallbacks);
}

/// A free slot of this thread in the default domain.
pub fn slot() -> *const AtomicUsize {
    thread::unguarded(0).slots.free()
}

/// What a guard has put into its slot, and the slot, which C empties.
pub fn keep<K, V>(held: Held<'_, K, V>) -> (*const (), *const AtomicUsize) {
    let slot = held.into_slot();
    (std::ptr::with_exposed_provenance(slot.load(Ordering::Relaxed)), slot)
}

/// Drops a domain that its own callbacks may use until they have run, in a callback too: C names
/// the domain by its address.
pub fn end(domain: Box<Domain>) {
    end::end_boxed(domain);
}

/// Whether this thread is running a callback.
pub fn in_callback() -> bool {
    thread::in_callback()
}

/// The node that a callback waits for, or whatever `retire` was given in its place.
///
/// # Safety
/// The head is that of the callback that runs, which has not freed it yet.
pub unsafe fn node(head: *const Head) -> *const () {
    // SAFETY: the caller's promise.
    std::ptr::with_exposed_provenance(unsafe { (*head).node })
}

/// A cookie as a number, and back.
pub fn number(cookie: Cookie) -> u64 {
    cookie.number()
}

/// See [`number`].
pub fn cookie(domain: DomainId, number: u64) -> Cookie {
    Cookie::from_number(domain, number)
}
