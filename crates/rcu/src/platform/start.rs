// SPDX-License-Identifier: MIT OR Apache-2.0
//! Start-up, once per process and before `main` where the linker lets us: the facts are found out,
//! the fork handlers are installed, and the key is made whose destructor runs when a thread exits.
//!
//! Nothing here allocates from the heap, so a signal handler may be the first caller.

use super::{exit, facts, fork, sys};
use std::sync::atomic::{AtomicU32, Ordering};

/// [`NOT_STARTED`], [`DONE`], or the id of the process in which a thread is starting up.
static STATE: AtomicU32 = AtomicU32::new(NOT_STARTED);
const NOT_STARTED: u32 = 0;
const DONE: u32 = u32::MAX;

/// Before the constructors of the program, which may be linked in front of the library: fork
/// handlers that they register have to be outside of ours, whose locks they may take. (Numbers up
/// to 100 are the implementation's; sanitizers begin at 1.)
#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func,mod_init_funcs"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array.00099"))]
static BEFORE_MAIN: extern "C" fn() = ensure;

/// Runs the start-up if it has not run yet.
///
/// A process may fork while another of its threads runs the start-up (only when the library was
/// loaded by `dlopen`: else this runs before `main`). The child finds its parent's id in `STATE`,
/// and runs the start-up again.
pub(crate) extern "C" fn ensure() {
    if STATE.load(Ordering::Acquire) == DONE {
        return;
    }
    let _blocked = sys::SignalsBlocked::new();
    let this_process = std::process::id();
    loop {
        match STATE.load(Ordering::Acquire) {
            DONE => return,
            state if state == this_process => std::thread::yield_now(),
            state => {
                let take =
                    |new| STATE.compare_exchange(state, new, Ordering::Acquire, Ordering::Relaxed);
                if take(this_process).is_ok() {
                    start();
                    STATE.store(DONE, Ordering::Release);
                }
            }
        }
    }
}

fn start() {
    #[cfg(reprieve_fault)]
    super::fault::init();
    exit::create_key();
    pin();
    fork::install();
    facts::find_out();
    sys::note_usable();
}

/// Keeps the image that contains this code loaded: key destructors and fork handlers point into it.
fn pin() {
    // SAFETY: dladdr fills `info` in when it returns nonzero; the path is a string of the loader;
    // NOLOAD only looks up.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(ensure as *const libc::c_void, &mut info) != 0 && !info.dli_fname.is_null()
        {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The wait status of a child process that exits with the result of `f`.
    pub(in super::super) fn in_child(f: &dyn Fn() -> i32) -> i32 {
        let mut status = -1;
        // SAFETY: the child leaves by _exit, and ends with this thread at the latest.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::_exit(f());
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        status
    }

    /// A thread of the parent was starting up when the process forked: the child has no such
    /// thread.
    #[test]
    fn a_fork_in_the_middle_of_starting_up() {
        ensure();
        let status = in_child(&|| {
            STATE.store(std::os::unix::process::parent_id(), Ordering::Relaxed);
            ensure();
            drop(crate::read_lock());
            crate::synchronize_rcu();
            // Handlers that were there twice would wait for themselves.
            let again = in_child(&|| 7);
            i32::from(STATE.load(Ordering::Relaxed) != DONE || again != 7 << 8)
        });
        assert_eq!(status, 0);
    }
}
