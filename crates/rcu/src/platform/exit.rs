// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a function in each round of destructors when a thread exits.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Rounds of destructors that the C library is bound to make (`PTHREAD_DESTRUCTOR_ITERATIONS` is at
/// least 4).
const ROUNDS: usize = 4;

/// Given whether this is the last round that is sure to come.
pub(crate) type AtExit = fn(bool);

/// `u32::MAX`: there is none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// The function that runs at a thread's exit. A folder above enters it: this one cannot name it.
static AT_EXIT: AtomicPtr<AtExit> = AtomicPtr::new(null_mut());

/// Called at start-up. (If start-up begins again in the child of a fork, the parent's key stays
/// unused.)
pub(super) fn create_key() {
    let mut key = 0;
    // SAFETY: the destructor is a function of this image, which `start::pin` keeps loaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(destructor)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Makes `f` run when this thread exits. One function for the process. (A thread that calls this
/// for the first time in a destructor has fewer rounds before it, and perhaps no last one.)
pub(crate) fn run_at_thread_exit(f: &'static AtExit) {
    AT_EXIT.store(std::ptr::from_ref(f).cast_mut(), Ordering::Relaxed);
    let key = KEY.load(Ordering::Relaxed);
    // SAFETY: the key exists. A value that is there counts the rounds of an exit, perhaps, of which
    // there are not more because another key's destructor calls this.
    if key != u32::MAX && unsafe { libc::pthread_getspecific(key) }.is_null() {
        set(key, ROUNDS);
    }
}

fn set(key: u32, rounds: usize) {
    // SAFETY: the key exists; the value is a number that nobody follows. glibc allocates for keys
    // beyond the 32nd only, and ours was made before `main`.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(rounds)) };
}

/// `value`: the rounds to come, this one included.
extern "C" fn destructor(value: *mut libc::c_void) {
    let left = value.addr().saturating_sub(1);
    // SAFETY: null, or what `run_at_thread_exit` was given.
    if let Some(f) = unsafe { AT_EXIT.load(Ordering::Relaxed).as_ref() } {
        f(left == 0);
    }
    if left != 0 {
        set(KEY.load(Ordering::Relaxed), left);
    }
}
