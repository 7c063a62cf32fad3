// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads for the child of a fork.

use std::mem::MaybeUninit;

/// Runs each of `others` on a thread of its own while `f` runs, and waits for all of them.
///
/// The standard library's threads will not do in the child of a fork: each takes a lock of that
/// library when it starts and when it ends, and a thread of the parent may have held that lock at
/// the fork. The C library resets its own locks.
pub fn beside<R>(others: &[&(dyn Fn() + Sync)], f: impl FnOnce() -> R) -> R {
    struct Threads(Vec<libc::pthread_t>);
    impl Drop for Threads {
        fn drop(&mut self) {
            for &thread in &self.0 {
                // SAFETY: started, and joined once.
                assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
            }
        }
    }
    extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: an element of `others`, which is there until all threads are joined. A panic ends
        // the process here.
        unsafe { (*body.cast::<&(dyn Fn() + Sync)>())() };
        std::ptr::null_mut()
    }
    let mut threads = Threads(Vec::new());
    for other in others {
        let mut thread = MaybeUninit::uninit();
        let body = std::ptr::from_ref(other).cast_mut().cast();
        // SAFETY: the call fills `thread` in; `run` takes what `body` points to.
        unsafe {
            let failed = libc::pthread_create(thread.as_mut_ptr(), std::ptr::null(), run, body);
            assert_eq!(failed, 0);
            threads.0.push(thread.assume_init());
        }
    }
    f()
}
