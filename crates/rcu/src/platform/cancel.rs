// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps `pthread_cancel` from ending a thread that holds a lock of the runtime.

/// Disables cancellation of this thread while it lives.
///
/// A cancelled thread ends in the next call of the C library that is a cancellation point (`open`,
/// `read`, `poll`, `pthread_join`), and what it held stays held: the leader of a grace period looks
/// into `/proc`, and calls the program's hook. (If cancellation is asynchronous, it ends anywhere.)
/// So every function that waits, or sweeps, disables cancellation before it takes a lock.
pub(crate) struct CancelDisabled {
    #[cfg(not(loom))]
    old: libc::c_int,
}

#[cfg(not(loom))]
unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
#[cfg(not(loom))]
const DISABLE: libc::c_int = if cfg!(target_vendor = "apple") { 0 } else { 1 };

#[cfg(not(loom))]
impl CancelDisabled {
    pub(crate) fn new() -> CancelDisabled {
        let mut old = 0;
        // SAFETY: `old` is valid for the write.
        unsafe { pthread_setcancelstate(DISABLE, &mut old) };
        CancelDisabled { old }
    }
}

#[cfg(not(loom))]
impl Drop for CancelDisabled {
    fn drop(&mut self) {
        // SAFETY: the state that this thread had; the result is not wanted.
        unsafe { pthread_setcancelstate(self.old, std::ptr::null_mut()) };
    }
}

/// In a model no thread is cancelled.
#[cfg(loom)]
impl CancelDisabled {
    pub(crate) fn new() -> CancelDisabled {
        CancelDisabled {}
    }
}
