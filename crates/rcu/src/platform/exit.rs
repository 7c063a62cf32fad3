// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a function in each round of destructors when a thread exits.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Rounds of destructors that the C library is bound to make (`PTHREAD_DESTRUCTOR_ITERATIONS` is at
/// least 4).
const ROUNDS: usize = 4;

/// Given whether this is the last round that is sure to come.
pub(crate) type AtExit = fn(bool);

/// [`NO_KEY`], or the key.
static KEY: AtomicU64 = AtomicU64::new(NO_KEY);
/// The program had taken all keys.
const NO_KEY: u64 = u64::MAX;
/// glibc keeps the values of its first keys in the thread's descriptor, and allocates from the heap
/// at the thread's first value of a later one. Ours is among the first if it was made before
/// `main`.
const FIRST_KEYS: u64 = 32;
/// The function that runs at a thread's exit. A folder above enters it: this one cannot name it.
static AT_EXIT: AtomicPtr<AtExit> = AtomicPtr::new(null_mut());

/// Called at start-up. (If start-up begins again in the child of a fork, the parent's key stays
/// unused.)
pub(super) fn create_key() {
    let mut key = 0;
    // SAFETY: the destructor is a function of this image, which `start::pin` keeps loaded.
    let created = unsafe { libc::pthread_key_create(&mut key, Some(destructor)) } == 0;
    KEY.store(if created { key as u64 } else { NO_KEY }, Ordering::Relaxed);
}

/// Whether threads run anything when they exit.
pub(crate) fn noticed() -> bool {
    KEY.load(Ordering::Relaxed) != NO_KEY
}

/// Whether [`run_at_thread_exit`] may allocate from the heap: then a signal handler must not be the
/// first to call it in its thread.
pub(crate) fn allocates() -> bool {
    cfg!(target_env = "gnu") && noticed() && KEY.load(Ordering::Relaxed) >= FIRST_KEYS
}

/// Makes `f` run when this thread exits. One function for the process. (A thread that calls this
/// for the first time in a destructor has fewer rounds before it, and perhaps no last one.) Where
/// there is no key, or no memory for its value, `f` does not run: what the thread leaves behind is
/// found by those who look for dead threads.
pub(crate) fn run_at_thread_exit(f: &'static AtExit) {
    AT_EXIT.store(std::ptr::from_ref(f).cast_mut(), Ordering::Relaxed);
    let key = KEY.load(Ordering::Relaxed);
    // SAFETY: the key exists. A value that is there counts the rounds of an exit, perhaps, of which
    // there are not more because another key's destructor calls this.
    if key != NO_KEY && unsafe { libc::pthread_getspecific(key as libc::pthread_key_t) }.is_null() {
        set(key, ROUNDS);
    }
}

fn set(key: u64, rounds: usize) {
    let value = std::ptr::without_provenance(rounds);
    // SAFETY: the key exists; the value is a number that nobody follows. Only a thread's first
    // value can be refused, for want of memory: see `allocates`.
    unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, value) };
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

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::super::start::{ensure, tests::in_child};
    use super::super::sys::Stack;
    use super::*;

    /// The library comes after so many keys, or after all.
    #[test]
    fn late_keys_are_reported() {
        ensure();
        // SAFETY: a key without a destructor.
        let take = || unsafe {
            let mut key = 0;
            (libc::pthread_key_create(&mut key, None) == 0).then_some(u64::from(key))
        };
        let support = || {
            let support = crate::support();
            (support.first_read_in_handler, support.exits_noticed)
        };
        let reads = || {
            let read = || drop(crate::read_lock());
            super::super::sys::Thread::start(format_args!("reader"), Stack::Bytes(1 << 20), read)
                .unwrap()
                .join();
            crate::synchronize_rcu();
        };
        let status = in_child(&|| {
            let before = support();
            while take().is_some_and(|key| key < FIRST_KEYS) {}
            create_key();
            let late = support();
            reads();
            while take().is_some() {}
            create_key();
            let none = support();
            reads();
            i32::from((before, late, none) != ((true, true), (false, true), (true, false)))
        });
        assert_eq!(status, 0);
    }
}
