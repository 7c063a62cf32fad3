// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forked children.

/// Runs `f` in a forked child; its exit status. The child ends with this thread, should the test be
/// killed.
pub fn in_child(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs `f` and leaves by _exit; the C library makes malloc usable in it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::_exit(if f() { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    }
}
