// SPDX-License-Identifier: MIT OR Apache-2.0
//! liburcu's `call_rcu` helper threads and its `defer_rcu`, on the runtime's own workers.
//!
//! The runtime always has a worker per CPU that registers callbacks. A `struct call_rcu_data` is
//! therefore a name that programs may hand around and assign; callbacks run on the worker of the
//! CPU that registered them, whatever is assigned. Its thread, for those who ask, is that of a
//! worker of the flavor's domain. What waits here waits for that domain's callbacks only, and takes
//! the thread offline meanwhile in the QSBR flavor.

use crate::{qsbr, reprieve_barrier, reprieve_call};
use reprieve_core::{Function, Head, abi};
use std::cell::Cell;
use std::ffi::{c_int, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `struct call_rcu_data`. Not empty: its address tells it from others.
pub struct Helper {
    _name: u8,
}

const CPUS: usize = 4096;
static PER_CPU: [AtomicPtr<Helper>; CPUS] = [const { AtomicPtr::new(null_mut()) }; CPUS];
static DEFAULT: Helper = Helper { _name: 0 };

/// A worker of the default domain and one of QSBR's: those that ran the probe below; 0 until then.
static WORKER: AtomicUsize = AtomicUsize::new(0);
static QSBR_WORKER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: Cell<*mut Helper> = const { Cell::new(null_mut()) };
}

/// In the child of a fork: its parent's helper threads do not exist, and nothing is assigned.
pub(crate) fn after_fork_child() {
    PER_CPU.iter().for_each(|helper| helper.store(null_mut(), Ordering::Relaxed));
    let _ = MINE.try_with(|mine| mine.set(null_mut()));
    WORKER.store(0, Ordering::Relaxed);
    QSBR_WORKER.store(0, Ordering::Relaxed);
}

fn cpus() -> usize {
    // SAFETY: no preconditions. -1 if unknown.
    (unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.max(1) as usize).min(CPUS)
}

/// Sets errno and gives the negative of it.
fn fail(error: c_int) -> c_int {
    // SAFETY: errno's location is this thread's own.
    unsafe { *libc::__errno_location() = error };
    -error
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_new(_flags: c_ulong, _cpu: c_int) -> *mut Helper {
    Box::into_raw(Box::new(Helper { _name: 0 }))
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_default() -> *mut Helper {
    (&raw const DEFAULT).cast_mut()
}

/// Frees helpers when the callbacks have run that were registered while these were assigned, as
/// with helper threads that are stopped. `barrier` waits for them.
///
/// # Safety
/// Each is from `reprieve_helper_new`, and assigned to nothing any more.
unsafe fn free(helpers: &[*mut Helper], barrier: extern "C" fn() -> c_int) {
    let ours = |helper: &*mut Helper| !helper.is_null() && *helper != reprieve_helper_default();
    let mut helpers = helpers.iter().copied().filter(ours).peekable();
    // If it fails a callback that uses one may still wait. Better a leak.
    if helpers.peek().is_some() && barrier() == 0 {
        // SAFETY: the caller's promise.
        helpers.for_each(|helper| drop(unsafe { Box::from_raw(helper) }));
    }
}

/// # Safety
/// Null, the default one, or from `reprieve_helper_new`, and assigned to nothing any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_helper_free(helper: *mut Helper) {
    // SAFETY: the caller's promise.
    unsafe { free(&[helper], reprieve_barrier) }
}

/// # Safety
/// As `reprieve_helper_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_qsbr_helper_free(helper: *mut Helper) {
    // SAFETY: the caller's promise.
    unsafe { free(&[helper], qsbr::reprieve_qsbr_barrier) }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_of_cpu(cpu: c_int) -> *mut Helper {
    match usize::try_from(cpu).ok().and_then(|c| PER_CPU.get(c)) {
        Some(helper) => helper.load(Ordering::Acquire),
        None => null_mut(),
    }
}

/// 0; `-EINVAL` for a CPU that does not exist, `-EEXIST` if it has a helper already (errno says so
/// too).
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_set_cpu(cpu: c_int, helper: *mut Helper) -> c_int {
    let Some(place) = usize::try_from(cpu).ok().filter(|&c| c < cpus()).map(|c| &PER_CPU[c]) else {
        return fail(libc::EINVAL);
    };
    if helper.is_null() {
        place.store(helper, Ordering::Release);
        return 0;
    }
    match place.compare_exchange(null_mut(), helper, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => 0,
        Err(_) => fail(libc::EEXIST),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_of_thread() -> *mut Helper {
    MINE.get()
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_set_thread(helper: *mut Helper) {
    MINE.set(helper);
}

/// The one in charge: the thread's, else the CPU's, else the default one.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_current() -> *mut Helper {
    let mine = MINE.get();
    if !mine.is_null() {
        return mine;
    }
    // SAFETY: no preconditions.
    let of_cpu = reprieve_helper_of_cpu(unsafe { libc::sched_getcpu() });
    if of_cpu.is_null() { reprieve_helper_default() } else { of_cpu }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_create_all(flags: c_ulong) -> c_int {
    for cpu in 0..cpus() as c_int {
        if reprieve_helper_of_cpu(cpu).is_null() {
            let helper = reprieve_helper_new(flags, cpu);
            if reprieve_helper_set_cpu(cpu, helper) != 0 {
                // SAFETY: ours, and another thread was faster.
                drop(unsafe { Box::from_raw(helper) });
            }
        }
    }
    0
}

fn free_all(barrier: extern "C" fn() -> c_int) {
    let places = PER_CPU[..cpus()].iter();
    let helpers: Vec<_> = places.map(|p| p.swap(null_mut(), Ordering::AcqRel)).collect();
    // SAFETY: taken out just now.
    unsafe { free(&helpers, barrier) }
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_free_all() {
    free_all(reprieve_barrier);
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_helper_free_all() {
    free_all(qsbr::reprieve_qsbr_barrier);
}

#[repr(C)]
struct Probe(Head, &'static AtomicUsize);

unsafe extern "C" fn note_thread(head: *mut Head) {
    // SAFETY: `head` is the first field of the allocation made below; the rest has no
    // preconditions.
    unsafe {
        let probe = Box::from_raw(head.cast::<Probe>());
        probe.1.store(libc::pthread_self() as usize, Ordering::Release);
    }
}

/// The thread in `worker`, which a callback notes there first if need be.
fn thread(
    worker: &'static AtomicUsize,
    call: unsafe extern "C" fn(*mut Head, Function, usize),
    barrier: extern "C" fn() -> c_int,
) -> libc::pthread_t {
    if abi::in_callback() {
        // A worker runs callbacks.
        // SAFETY: no preconditions.
        return unsafe { libc::pthread_self() };
    }
    if worker.load(Ordering::Acquire) == 0 {
        let probe = Box::into_raw(Box::new(Probe(Head::new(), worker)));
        // SAFETY: the head is fresh, heads its allocation, and is freed by `note_thread`.
        unsafe { call(probe.cast(), note_thread, 0) };
        barrier();
    }
    worker.load(Ordering::Acquire) as libc::pthread_t
}

/// A worker's thread. Not for sections.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_helper_thread(_: *const Helper) -> libc::pthread_t {
    thread(&WORKER, reprieve_call, reprieve_barrier)
}

#[unsafe(no_mangle)]
pub extern "C" fn reprieve_qsbr_helper_thread(_: *const Helper) -> libc::pthread_t {
    thread(&QSBR_WORKER, qsbr::reprieve_qsbr_call, qsbr::reprieve_qsbr_barrier)
}

#[repr(C)]
struct Deferred {
    head: Head,
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

unsafe extern "C" fn run_deferred(head: *mut Head) {
    // SAFETY: `head` is the first field of the allocation made below; the registrant answers for
    // the function.
    unsafe {
        let deferred = Box::from_raw(head.cast::<Deferred>());
        (deferred.function)(deferred.argument);
    }
}

fn deferred(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> *mut Head {
    Box::into_raw(Box::new(Deferred { head: Head::new(), function, argument })).cast()
}

/// # Safety
/// `function(argument)` may be called on another thread after a grace period.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_defer(
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the head is fresh, heads its allocation, and is freed by `run_deferred`.
    unsafe { reprieve_call(deferred(function, argument), run_deferred, 0) }
}

/// # Safety
/// As `reprieve_defer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reprieve_qsbr_defer(
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: as above.
    unsafe { qsbr::reprieve_qsbr_call(deferred(function, argument), run_deferred, 0) }
}
