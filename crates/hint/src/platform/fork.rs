// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place of this process in a line of forks: its *epoch*.
//!
//! The child of a fork has a copy of each lock, but of the threads only the one that forked. What
//! the others had written into a lock as waiters is not true in the child. So it is stamped:
//!
//! > **Invariant.** The epoch of a process is greater than that of every process from which it was
//! > forked, and does not change. A stamp of another epoch is one of a thread that is not here.
//!
//! The epoch lies in a page that the kernel clears in the child (`MADV_WIPEONFORK`, Linux 4.14), so
//! it is right in handlers of `pthread_atfork` that run before ours, and after a bare `clone`.
//! Whoever finds 0 takes the next number. The kernel is told once, at load time: children inherit
//! that. Where it does not clear the page, our handler does (`region`).
//!
//! Not covered: a signal handler that forks while its thread waits for a lock.

#[cfg(not(loom))]
pub(crate) use real::{epoch, find_out, forget};

/// The models' process; what was left by another has a smaller number.
#[cfg(loom)]
pub(crate) fn epoch() -> u32 {
    2
}

#[cfg(not(loom))]
mod real {
    use crate::platform::sys;
    use std::sync::atomic::{AtomicU32, Ordering};

    const PAGE: usize = 4096;

    #[repr(C, align(4096))]
    struct Page(AtomicU32);

    /// The epoch, or 0 if it is not chosen yet.
    static CHOSEN: Page = Page(AtomicU32::new(0));
    /// At least each epoch that was chosen in this line of processes.
    static LAST: AtomicU32 = AtomicU32::new(0);

    /// This process's epoch, never 0.
    #[inline(always)]
    pub(crate) fn epoch() -> u32 {
        match CHOSEN.0.load(Ordering::Relaxed) {
            0 => choose(),
            epoch => epoch,
        }
    }

    pub(crate) fn find_out() {
        sys::wipe_on_fork((&raw const CHOSEN).cast(), PAGE);
    }

    #[cold]
    #[inline(never)]
    fn choose() -> u32 {
        let next = LAST.load(Ordering::Relaxed) + 1;
        // First, so that a child that is forked in between does not choose the same.
        LAST.fetch_max(next, Ordering::SeqCst);
        match CHOSEN.0.compare_exchange(0, next, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => next,
            Err(other) => other,
        }
    }

    /// In the child of a fork, by its only thread.
    pub(crate) fn forget() {
        CHOSEN.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    /// In the child that is forked by the bare system call, for which no handlers run.
    #[test]
    fn a_child_has_another() {
        let before = super::epoch();
        // SAFETY: the child only compares and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let own = super::epoch();
            let ok = own > before && super::epoch() == own;
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: waits for the child above.
        let waited = unsafe { libc::waitpid(child as i32, &mut status, 0) };
        assert_eq!((i64::from(waited), status), (child, 0));
        assert_eq!(super::epoch(), before);
    }
}
