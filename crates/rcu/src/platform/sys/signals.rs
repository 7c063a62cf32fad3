// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals kept away from a thread for a while.

use super::errno;
#[cfg(not(target_os = "linux"))]
use super::other::take_signal;

/// Blocks all signals while it lives, so that no handler runs in the middle of a registration.
/// Keeps `errno`.
pub(crate) struct SignalsBlocked {
    old: libc::sigset_t,
    errno: i32,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // SAFETY: the sets are plain data which sigfillset and pthread_sigmask fill in; errno's
        // location is this thread's own.
        unsafe {
            let errno = *errno();
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            SignalsBlocked { old, errno }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `old` was filled in by pthread_sigmask in `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut());
            *errno() = self.errno;
        }
    }
}

/// Keeps SIGPIPE from this thread while it lives, except one that was pending before.
pub(super) struct PipeSignalBlocked {
    old: libc::sigset_t,
    pending: bool,
}

impl PipeSignalBlocked {
    fn set() -> libc::sigset_t {
        // SAFETY: plain data that the calls fill in.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGPIPE);
            set
        }
    }

    pub(super) fn new() -> PipeSignalBlocked {
        // SAFETY: plain data that the calls fill in.
        unsafe {
            let (mut old, mut pending): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &PipeSignalBlocked::set(), &mut old);
            libc::sigpending(&mut pending);
            PipeSignalBlocked { old, pending: libc::sigismember(&pending, libc::SIGPIPE) == 1 }
        }
    }
}

impl Drop for PipeSignalBlocked {
    fn drop(&mut self) {
        if !self.pending {
            take_signal(&PipeSignalBlocked::set());
        }
        // SAFETY: `old` was filled in by `new`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old, std::ptr::null_mut()) };
    }
}

/// Takes a signal that is pending.
#[cfg(target_os = "linux")]
fn take_signal(set: &libc::sigset_t) {
    /// The kernel's signal set.
    const BYTES: usize = 8;
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let none = std::ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: plain data. A bare system call, which is no cancellation point.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, set, none, &now, BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SIGPIPE of the program's stays pending, one of the write does not.
    #[test]
    fn a_signal_of_the_program_is_left_alone() {
        let status = crate::platform::start::tests::in_child(&|| {
            let pending = || PipeSignalBlocked::new().pending;
            // SAFETY: signals of this thread alone.
            unsafe {
                libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                let blocked = PipeSignalBlocked::new();
                libc::raise(libc::SIGPIPE);
                drop(blocked);
                if pending() {
                    return 1;
                }
                let set = PipeSignalBlocked::set();
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                libc::raise(libc::SIGPIPE);
                drop(PipeSignalBlocked::new());
            }
            i32::from(!pending())
        });
        assert_eq!(status, 0);
    }
}
