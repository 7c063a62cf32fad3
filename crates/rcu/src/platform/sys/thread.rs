// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads: their ids, and those that the runtime starts.

#[cfg(not(target_os = "linux"))]
use super::other::set_name;
use super::signals::SignalsBlocked;

/// Where the calling thread's `errno` is.
#[cfg(target_os = "linux")]
pub(crate) fn errno() -> *mut i32 {
    // SAFETY: no preconditions.
    unsafe { libc::__errno_location() }
}

#[cfg(target_os = "linux")]
pub(crate) fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Whether this process has a thread of that id, dead or not. True when in doubt.
#[cfg(target_os = "linux")]
pub(crate) fn exists_here(thread: u32) -> bool {
    // SAFETY: signal 0 is not delivered.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 || !no_such_process() }
}

/// The same of any thread and process.
#[cfg(target_os = "linux")]
pub(crate) fn exists(thread: u32) -> bool {
    // SAFETY: as above.
    unsafe { libc::kill(thread as libc::pid_t, 0) == 0 || !no_such_process() }
}

#[cfg(target_os = "linux")]
fn no_such_process() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

#[cfg(target_os = "linux")]
fn set_name(name: &Name) {
    // SAFETY: a string, since the last byte is 0.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Whether the program has more privileges than its caller.
#[cfg(target_os = "linux")]
pub(crate) fn privileged() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A thread of the runtime. Not the standard library's: in the child of a fork that library's locks
/// may be held by threads of the parent, while the C library resets its own.
pub(crate) struct Thread(libc::pthread_t);

// SAFETY: any thread of the process may name another one. (musl's name is a pointer.)
unsafe impl Send for Thread {}

/// How large a thread's stack is.
pub(crate) enum Stack {
    /// For the program's functions: as large as those of the program's own threads are by default
    /// (`ulimit -s`, `pthread_setattr_default_np`), and no smaller than those of Rust's.
    Program,
    Bytes(usize),
}

impl Stack {
    /// Stack bytes of the standard library's threads. (musl's default is far less.)
    const LEAST: usize = 2 << 20;

    fn bytes(&self, attributes: &libc::pthread_attr_t) -> usize {
        let mut default = 0;
        // SAFETY: initialized attributes, in which the C library finds its default.
        unsafe { libc::pthread_attr_getstacksize(attributes, &mut default) };
        match *self {
            Stack::Program => default.max(Stack::LEAST),
            Stack::Bytes(bytes) => bytes,
        }
    }
}

/// The kernel cuts a name off at 15 bytes.
pub(super) type Name = [u8; 16];

impl Thread {
    /// Starts one with all signals blocked, so that handlers run on the program's own threads.
    /// `None` if the system refuses, or has no memory. `f` does not unwind: that would end the
    /// process. The program's thread-local storage is part of the stack.
    pub(crate) fn start<F: FnOnce() + Send + 'static>(
        name: std::fmt::Arguments<'_>,
        stack: Stack,
        f: F,
    ) -> Option<Thread> {
        extern "C" fn run<F: FnOnce()>(body: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: what `start` has made.
            let (name, f) = *unsafe { Box::from_raw(body.cast::<(Name, F)>()) };
            set_name(&name);
            f();
            std::ptr::null_mut()
        }
        let _blocked = SignalsBlocked::new();
        let mut bytes = Name::default();
        // A longer name keeps its first bytes.
        let _ = std::io::Write::write_fmt(&mut &mut bytes[..15], name);
        let mut body = Vec::new();
        body.try_reserve_exact(1).ok()?;
        body.push((bytes, f));
        let body = Box::into_raw(body.into_boxed_slice()).cast::<(Name, F)>();
        // SAFETY: plain data that the calls fill in; the new thread owns the body, or nobody.
        unsafe {
            let mut thread: libc::pthread_t = std::mem::zeroed();
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            let initialized = !cfg!(miri) && libc::pthread_attr_init(&mut attributes) == 0;
            let sized = initialized && {
                let bytes = stack.bytes(&attributes);
                libc::pthread_attr_setstacksize(&mut attributes, bytes) == 0
            };
            let create = |thread: &mut _, attributes| {
                libc::pthread_create(thread, attributes, run::<F>, body.cast()) == 0
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
