// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a function when a thread exits, after the destructors whose guards must be dropped first.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Rounds of destructors before the function runs: one less than the C library is bound to make
/// (`PTHREAD_DESTRUCTOR_ITERATIONS`, at least 4), so that guards which other keys' destructors drop
/// are gone by then.
const ROUNDS: usize = 3;

/// `u32::MAX`: there is none.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);
/// The function that runs at a thread's exit. A folder above enters it: this one cannot name it.
static AT_EXIT: AtomicPtr<fn()> = AtomicPtr::new(null_mut());

/// Called at start-up. (If start-up begins again in the child of a fork, the parent's key stays
/// unused.)
pub(super) fn create_key() {
    let mut key = 0;
    // SAFETY: the destructor is a function of this image, which `start::pin` keeps loaded.
    if unsafe { libc::pthread_key_create(&mut key, Some(destructor)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Makes `f` run when this thread exits. One function for the process.
pub(crate) fn run_at_thread_exit(f: &'static fn()) {
    AT_EXIT.store(std::ptr::from_ref(f).cast_mut(), Ordering::Relaxed);
    run_after(ROUNDS);
}

fn run_after(rounds: usize) {
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: the key exists; the value is a number that nobody follows. glibc allocates for
        // keys beyond the 32nd only, and ours was made before `main`.
        unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(rounds + 1)) };
    }
}

extern "C" fn destructor(value: *mut libc::c_void) {
    match value.addr().saturating_sub(1) {
        0 => {
            // SAFETY: null, or what `run_at_thread_exit` was given.
            if let Some(f) = unsafe { AT_EXIT.load(Ordering::Relaxed).as_ref() } {
                f();
            }
        }
        rounds => run_after(rounds - 1),
    }
}
