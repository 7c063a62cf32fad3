// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the C library's structures are as this library takes them to be: found out once, by
//! having the C library initialize some.

use crate::next::next;
use libc::{
    c_int, clockid_t, pthread_cond_t, pthread_condattr_t, pthread_mutex_t, pthread_mutexattr_t,
    pthread_rwlock_t,
};
use reprieve_hint::abi::Prefer;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets in glibc's structures on x86-64, since 2.25. Ours lie before them.
const MUTEX_KIND: usize = 16;
const LOCK_SHARED: usize = 28;
const LOCK_FLAGS: usize = 48;
/// Since 2.41, and before that; patches may bring the newer one to older releases.
const COND_FLAGS: [u32; 2] = [28, 36];
const COND_SHARED: u32 = 1;
const COND_MONOTONIC: u32 = 2;

/// `PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP`.
const WRITERS: u32 = 2;
const ADAPTIVE: u32 = 3;
/// Bits that only say how the C library may speed its own locking up.
const ELISION: u32 = 0x300;

const UNKNOWN: u32 = 0;
const NO: u32 = 1;
/// If all is as expected, the one of [`COND_FLAGS`] that conditions have.
static FOUND: AtomicU32 = AtomicU32::new(UNKNOWN);

fn word(of: *const u8, offset: usize) -> u32 {
    // SAFETY: within a structure of the C library's, of which the caller has a valid pointer; it
    // does not change while threads use the object.
    unsafe { of.add(offset).cast::<u32>().read() }
}

/// Where conditions have their flags, if all is as expected.
#[inline]
fn found() -> Option<usize> {
    let found = match FOUND.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        found => found,
    };
    (found != NO).then_some(found as usize)
}

/// At load time, or by a lock that is taken before that. Locks that other libraries take meanwhile,
/// in functions of the C library that they replace, stay the C library's.
#[cold]
#[inline(never)]
fn look() -> u32 {
    FOUND.store(NO, Ordering::Relaxed);
    let found = find_out().unwrap_or(NO);
    FOUND.store(found, Ordering::Relaxed);
    found
}

/// Whether all is as expected.
#[inline]
pub fn known() -> bool {
    found().is_some()
}

/// For those who run a program with this library: whether locks of the default kinds are ours.
#[unsafe(no_mangle)]
pub extern "C" fn reprieve_locks_replaced() -> bool {
    known()
}

/// Whether the mutex is ours.
#[inline]
pub fn mutex(mutex: *const pthread_mutex_t) -> bool {
    let kind = word(mutex.cast(), MUTEX_KIND) & !ELISION;
    (kind == 0 || kind == ADAPTIVE) && known()
}

/// Whether the lock is ours, and who goes first. With `PTHREAD_RWLOCK_PREFER_WRITER_NP`, which may
/// read recursively, readers do.
#[inline]
pub fn read_write(lock: *const pthread_rwlock_t) -> Option<Prefer> {
    let shared = word(lock.cast(), LOCK_SHARED) != 0;
    (!shared && known()).then(|| match word(lock.cast(), LOCK_FLAGS) {
        WRITERS => Prefer::Writers,
        _ => Prefer::Readers,
    })
}

/// Whether the condition is ours. If we initialized it, that word is 0.
#[inline]
pub fn condition(condition: *const pthread_cond_t) -> bool {
    found().is_some_and(|flags| word(condition.cast(), flags) & COND_SHARED == 0)
}

/// The clock of a condition that is the C library's, although the mutex is ours.
pub fn clock(condition: *const pthread_cond_t) -> clockid_t {
    clock_by(found().map_or(0, |flags| word(condition.cast(), flags)))
}

fn clock_by(flags: u32) -> clockid_t {
    let monotonic = flags & COND_MONOTONIC != 0;
    if monotonic { libc::CLOCK_MONOTONIC } else { libc::CLOCK_REALTIME }
}

/// Has the C library initialize a condition.
pub fn real_init(condition: *mut pthread_cond_t, attr: *const pthread_condattr_t) -> c_int {
    next!(pthread_cond_init(
        condition => *mut pthread_cond_t, attr => *const pthread_condattr_t))
}

unsafe extern "C" {
    fn pthread_mutexattr_setrobust(attr: *mut libc::pthread_mutexattr_t, robust: c_int) -> c_int;
    fn pthread_mutexattr_setprotocol(
        attr: *mut libc::pthread_mutexattr_t,
        protocol: c_int,
    ) -> c_int;
    fn pthread_rwlockattr_setkind_np(attr: *mut libc::pthread_rwlockattr_t, kind: c_int) -> c_int;
}

type Set = unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int;

/// A mutex of the C library's, with that attribute.
fn mutex_with(set: Set, value: c_int) -> pthread_mutex_t {
    // SAFETY: an object of our own, initialized by the C library, of which nothing need be
    // destroyed.
    unsafe {
        let mut attr: pthread_mutexattr_t = std::mem::zeroed();
        let mut mutex: pthread_mutex_t = std::mem::zeroed();
        libc::pthread_mutexattr_init(&mut attr);
        set(&mut attr, value);
        libc::pthread_mutex_init(&mut mutex, &attr);
        mutex
    }
}

fn find_out() -> Option<u32> {
    const INHERIT: c_int = 1;
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let kind = |set, value| {
        let mutex = mutex_with(set, value);
        word((&raw const mutex).cast(), MUTEX_KIND) & !ELISION
    };
    let others: [(Set, c_int); 5] = [
        (libc::pthread_mutexattr_settype, libc::PTHREAD_MUTEX_RECURSIVE),
        (libc::pthread_mutexattr_settype, libc::PTHREAD_MUTEX_ERRORCHECK),
        (libc::pthread_mutexattr_setpshared, libc::PTHREAD_PROCESS_SHARED),
        (pthread_mutexattr_setrobust, 1),
        (pthread_mutexattr_setprotocol, INHERIT),
    ];
    let right = kind(libc::pthread_mutexattr_setpshared, libc::PTHREAD_PROCESS_PRIVATE) == 0
        && others.into_iter().all(|(set, value)| ![0, ADAPTIVE].contains(&kind(set, value)))
        && locks();
    COND_FLAGS.into_iter().find(|&flags| right && conditions(flags as usize))
}

fn locks() -> bool {
    // SAFETY: as in `mutex_with`.
    unsafe {
        let make = |shared: c_int, kind: c_int| {
            let mut attr: libc::pthread_rwlockattr_t = std::mem::zeroed();
            let mut lock: pthread_rwlock_t = std::mem::zeroed();
            libc::pthread_rwlockattr_init(&mut attr);
            libc::pthread_rwlockattr_setpshared(&mut attr, shared);
            pthread_rwlockattr_setkind_np(&mut attr, kind);
            libc::pthread_rwlock_init(&mut lock, &attr);
            let lock = (&raw const lock).cast();
            (word(lock, LOCK_SHARED) != 0, word(lock, LOCK_FLAGS))
        };
        make(libc::PTHREAD_PROCESS_PRIVATE, 0) == (false, 0)
            && make(libc::PTHREAD_PROCESS_PRIVATE, WRITERS as c_int) == (false, WRITERS)
            && make(libc::PTHREAD_PROCESS_SHARED, 0).0
    }
}

fn conditions(flags: usize) -> bool {
    // SAFETY: as in `mutex_with`.
    unsafe {
        let mut attr: libc::pthread_condattr_t = std::mem::zeroed();
        libc::pthread_condattr_init(&mut attr);
        libc::pthread_condattr_setpshared(&mut attr, libc::PTHREAD_PROCESS_SHARED);
        let mut condition: pthread_cond_t = std::mem::zeroed();
        real_init(&mut condition, &attr);
        let real_time = word((&raw const condition).cast(), flags);
        libc::pthread_condattr_setclock(&mut attr, libc::CLOCK_MONOTONIC);
        real_init(&mut condition, &attr);
        let monotonic = word((&raw const condition).cast(), flags);
        (real_time, monotonic) == (COND_SHARED, COND_SHARED | COND_MONOTONIC)
    }
}
