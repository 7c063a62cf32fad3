// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks, and changes of who the process is.

use crate::calls::{self, returns};
use crate::next::next;
use crate::{reach, signals};
use libc::{c_int, gid_t, pid_t, uid_t};
use reprieve_ipc_core::kernel::call;
use reprieve_ipc_core::{Fork, credentials_changed, watch_forks};

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// When the library is loaded.
extern "C" fn loaded() {
    // Some allocators register handlers for forks when they are first used. Before a fork these
    // must run after ours, which allocate.
    // SAFETY: frees what it has allocated.
    unsafe { libc::free(std::hint::black_box(libc::malloc(1))) };
    watch_forks();
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
        calls::prepare();
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
