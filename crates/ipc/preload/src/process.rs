// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks, and changes of who the process is.

use crate::next::next;
use libc::{c_int, gid_t, pid_t, uid_t};
use reprieve_ipc_core::{credentials_changed, forked};

#[unsafe(no_mangle)]
extern "C" fn fork() -> pid_t {
    let pid = next!(c"fork", fn() -> pid_t,);
    if pid != 0 {
        forked(pid);
    }
    pid
}

/// Functions after which permissions are checked against new credentials.
macro_rules! credentials {
    ($($name:ident($($argument:ident: $type:ty),*) $text:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_int {
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
}
