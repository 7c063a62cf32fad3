// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks, and changes of who the process is.

use crate::calls::returns;
use crate::next::next;
use crate::{opened, reach, signals};
use libc::{c_int, c_uint, c_void, gid_t, pid_t, uid_t};
use reprieve_ipc_core::kernel::call;
use reprieve_ipc_core::{Fork, credentials_changed, users};

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// When the library is loaded.
extern "C" fn loaded() {
    signals::begin();
    reach::lead_here();
}

#[unsafe(no_mangle)]
extern "C" fn fork() -> pid_t {
    let fork = Fork::begin();
    let pid = next!(c"fork", fn() -> pid_t,);
    fork.end(pid);
    pid
}

/// The C library's forks past ours, and its parent ends before the child may have said who it is.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn daemon(no_chdir: c_int, no_close: c_int) -> c_int {
    match fork() {
        -1 => return -1,
        0 => {}
        // SAFETY: the parent's end.
        _ => drop(unsafe { call!(SYS_exit_group, 0) }),
    }
    // SAFETY: strings, and descriptors of this process, which has asked for that.
    let done = unsafe {
        call!(SYS_setsid).and_then(|_| {
            if no_chdir == 0 {
                let _ = call!(SYS_chdir, c"/".as_ptr());
            }
            if no_close == 0 {
                let name = c"/dev/null".as_ptr();
                let null = call!(SYS_openat, libc::AT_FDCWD, name, libc::O_RDWR)?;
                for standard in (0..3).filter(|&standard| standard != null) {
                    let _ = call!(SYS_dup3, null, standard, 0);
                }
                if null > 2 {
                    let _ = call!(SYS_close, null);
                }
            }
            Ok(0)
        })
    };
    returns(done.map(|_| 0))
}

/// Before the process gives up being root, or moves its own root: opens the namespace that its
/// starter has named, which it may not be able to open afterwards.
fn before_a_change() {
    let named = std::env::var_os("REPRIEVE_IPC_DIR").is_some_and(|named| !named.is_empty());
    // SAFETY: no preconditions.
    let is_root = unsafe { call!(SYS_geteuid) } == Ok(0);
    if named && is_root {
        opened::prepare(false);
    }
}

/// Functions after which permissions are checked against new credentials.
macro_rules! credentials {
    ($($name:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_int {
            before_a_change();
            let result = next!($text, fn($($type),*) -> c_int, $($argument),*);
            credentials_changed();
            result
        }
    )*};
}

credentials! {
    setuid(user: uid_t) c"setuid";
    seteuid(user: uid_t) c"seteuid";
    setreuid(real: uid_t, effective: uid_t) c"setreuid";
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) c"setresuid";
    setgid(group: gid_t) c"setgid";
    setegid(group: gid_t) c"setegid";
    chroot(directory: *const libc::c_char) c"chroot";
}

/// Has this thread leave namespaces, for `syscall`, too.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    before_a_change();
    let before = users::before();
    let result = next!(c"unshare", fn(c_int) -> c_int, flags);
    if result == 0 {
        if flags & (libc::CLONE_NEWIPC | libc::CLONE_SYSVSEM) != 0 {
            opened::leave_adjustments();
        }
        opened::namespaces_changed(flags, Some(before));
    }
    result
}

/// Has this thread enter a namespace, for `syscall`, too.
#[unsafe(no_mangle)]
pub extern "C" fn setns(descriptor: c_int, kind: c_int) -> c_int {
    before_a_change();
    let result = next!(c"setns", fn(c_int, c_int) -> c_int, descriptor, kind);
    if result == 0 {
        opened::namespaces_changed(if kind == 0 { !0 } else { kind }, None);
    }
    result
}

/// The C library's has a variable number of arguments. For `syscall`, too.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        opened::prepare(true);
    }
    next!(c"prctl", fn(c_int, usize, usize, usize, usize) -> c_int, option, a, b, c, d)
}

/// Before the process may have so few descriptors that it could not open what its calls need.
///
/// # Safety
/// Null, or a valid limit.
unsafe fn before_a_limit(resource: c_uint, new: *const libc::rlimit) {
    const FEW: u64 = 16;
    // SAFETY: the caller's promise.
    let few = unsafe { new.as_ref() }.is_some_and(|new| new.rlim_cur < FEW);
    if few && resource == libc::RLIMIT_NOFILE {
        opened::prepare(false);
    }
}

/// Functions that set a limit.
macro_rules! limits {
    ($($name:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {$(
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            limits!(@ $($argument),*);
            next!($text, fn($($type),*) -> c_int, $($argument),*)
        }
    )*};
    // SAFETY: the caller's promise.
    (@ $resource:ident, $new:ident) => { unsafe { before_a_limit($resource, $new) } };
    (@ $_process:ident, $resource:ident, $new:ident, $_old:ident) => {
        limits!(@ $resource, $new)
    };
}

limits! {
    setrlimit(resource: c_uint, new: *const libc::rlimit) c"setrlimit";
    setrlimit64(resource: c_uint, new: *const libc::rlimit) c"setrlimit64";
    prlimit(process: pid_t, resource: c_uint, new: *const libc::rlimit, old: *mut libc::rlimit)
        c"prlimit";
    prlimit64(process: pid_t, resource: c_uint, new: *const libc::rlimit, old: *mut libc::rlimit)
        c"prlimit64";
}

type Entry = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The work of a child in namespaces of its own.
struct Start {
    function: Entry,
    argument: *mut c_void,
    flags: c_int,
    before: [u32; 2],
}

unsafe extern "C" fn start(start: *mut c_void) -> c_int {
    // SAFETY: from `clone`, whose caller answers for the function.
    unsafe {
        let Start { function, argument, flags, before } = start.cast::<Start>().read();
        opened::namespaces_changed(flags, Some(before));
        function(argument)
    }
}

/// The C library's has a variable number of arguments, of which three follow at most.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    mut function: Entry,
    stack: *mut c_void,
    flags: c_int,
    mut argument: *mut c_void,
    parent: usize,
    storage: usize,
    child: usize,
) -> c_int {
    if flags & (libc::CLONE_NEWIPC | libc::CLONE_NEWUSER) != 0 {
        let new = Start { function, argument, flags, before: users::before() };
        // The child may share this memory, and outlive the call.
        (function, argument) = (start, Box::into_raw(Box::new(new)).cast());
    }
    next!(
        c"clone",
        fn(Entry, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int,
        function,
        stack,
        flags,
        argument,
        parent,
        storage,
        child
    )
}
