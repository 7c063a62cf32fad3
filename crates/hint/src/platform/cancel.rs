// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps `pthread_cancel` from ending a thread in a call that is no cancellation point of its own.

/// Disables cancellation of this thread while it lives. (Asynchronous cancellation excepted: that
/// ends a thread anywhere before this.)
pub(crate) struct CancelDisabled {
    old: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

impl CancelDisabled {
    pub(crate) fn new() -> CancelDisabled {
        /// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
        const DISABLE: libc::c_int = 1;
        let mut old = 0;
        // SAFETY: `old` is valid for the write.
        unsafe { pthread_setcancelstate(DISABLE, &mut old) };
        CancelDisabled { old }
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        // SAFETY: the state that this thread had; the result is not wanted.
        unsafe { pthread_setcancelstate(self.old, std::ptr::null_mut()) };
    }
}
