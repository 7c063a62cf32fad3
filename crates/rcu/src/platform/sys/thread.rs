// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads: their ids, and those that the runtime starts.

use super::signals::SignalsBlocked;

pub(crate) fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether this process has a thread of that id, dead or not. True when in doubt.
pub(crate) fn exists_here(thread: u32) -> bool {
    // SAFETY: signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 || !no_such_process() }
}

/// The same of any thread and process.
pub(crate) fn exists(thread: u32) -> bool {
    // SAFETY: as above.
    unsafe { libc::kill(thread as libc::pid_t, 0) == 0 || !no_such_process() }
}

fn no_such_process() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// A thread of the runtime. Not the standard library's: in the child of a fork that library's locks
/// may be held by threads of the parent, while the C library resets its own.
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: any thread of the process may name another one. (musl's name is a pointer.)
unsafe impl Send for Thread {}

type Body = Box<dyn FnOnce() + Send>;

/// The stack size of the standard library's threads.
pub(crate) const STACK: usize = 2 << 20;

impl Thread {
    /// Starts one with all signals blocked, so that handlers run on the program's own threads.
    /// `None` if the system refuses. `f` does not unwind: that would end the process. The kernel
    /// cuts the name off at 15 bytes. The program's thread-local storage is part of the stack.
    pub(crate) fn start(
        name: String,
        stack: usize,
        f: impl FnOnce() + Send + 'static,
    ) -> Option<Thread> {
        extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: what `start` has made.
            let body = unsafe { Box::from_raw(body.cast::<Body>()) };
            body();
            std::ptr::null_mut()
        }
        let _blocked = SignalsBlocked::new();
        let body: Body = Box::new(move || {
            let name = std::ffi::CString::new(name).unwrap_or_default();
            // SAFETY: a string.
            unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            f();
        });
        let body = Box::into_raw(Box::new(body));
        // SAFETY: plain data that the calls fill in; the new thread owns the body, or nobody.
        unsafe {
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let initialized = libc::pthread_attr_init(&mut attributes) == 0;
            let sized = initialized && libc::pthread_attr_setstacksize(&mut attributes, stack) == 0;
            let create = |thread: &mut _, attributes| {
                libc::pthread_create(thread, attributes, run, body.cast()) == 0
            };
            // If thread-local storage needs more than `stack`: the program's default size.
            let started = sized && create(&mut thread, &raw const attributes)
                || create(&mut thread, std::ptr::null());
            if initialized {
                libc::pthread_attr_destroy(&mut attributes);
            }
            if !started {
                drop(Box::from_raw(body));
            }
            started.then_some(Thread(thread))
        }
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        // SAFETY: started, and neither joined nor detached.
        unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
    }

    /// Nobody waits for its end.
    pub(crate) fn detach(self) {
        // SAFETY: as above.
        unsafe { libc::pthread_detach(self.0) };
    }
}
