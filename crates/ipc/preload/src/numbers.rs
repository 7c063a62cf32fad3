// SPDX-License-Identifier: MIT OR Apache-2.0
//! `syscall`: the calls of programs that make them by number.

use crate::calls::*;
use crate::next::next;
use crate::opened::{namespaces_changed, prepare};
use crate::process::{prctl, setns, unshare};
use libc::{c_int, c_long, c_void, sembuf, timespec};
use reprieve_ipc_core::users;

/// For programs that make the calls by number.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
#[expect(clippy::undocumented_unsafe_blocks, reason = "the caller's promise, for all")]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let (ai, bi, ci, di) = (a as c_int, b as c_int, c as c_int, d as c_int);
    // SAFETY, for all calls here: the caller's promise.
    let result = unsafe {
        match number {
            libc::SYS_semget => own_semget(ai, bi, ci),
            libc::SYS_semop => own_semop(ai, b as *mut sembuf, c as u32 as *const () as usize),
            libc::SYS_semtimedop => {
                own_semtimedop(ai, b as *mut sembuf, c as u32 as usize, d as *const timespec)
            }
            libc::SYS_semctl => own_semctl(ai, bi, ci, d),
            libc::SYS_msgget => own_msgget(ai, bi),
            libc::SYS_msgsnd => own_msgsnd(ai, b as *const c_void, c, di),
            libc::SYS_msgrcv => {
                return own_msgrcv(ai, b as *mut c_void, c, d as c_long, e as c_int) as c_long;
            }
            libc::SYS_msgctl => own_msgctl(ai, bi, c as *mut libc::msqid_ds),
            libc::SYS_shmget => own_shmget(ai, b, ci),
            libc::SYS_shmat => return own_shmat(ai, b as *const c_void, ci) as c_long,
            libc::SYS_shmdt => own_shmdt(a as *const c_void),
            libc::SYS_shmctl => own_shmctl(ai, bi, c as *mut libc::shmid_ds),
            libc::SYS_seccomp => {
                prepare(true);
                return pass_on(number, [a, b, c, d, e, f]);
            }
            libc::SYS_prctl => prctl(ai, b, c, d, e),
            libc::SYS_unshare => unshare(ai),
            libc::SYS_setns => setns(ai, bi),
            libc::SYS_clone | libc::SYS_clone3 => {
                let before = users::before();
                let result = pass_on(number, [a, b, c, d, e, f]);
                if result == 0 {
                    let first = if number == libc::SYS_clone { Ok(a) } else { read(a) };
                    namespaces_changed(first.unwrap_or(0) as c_int, Some(before));
                }
                return result;
            }
            _ => return pass_on(number, [a, b, c, d, e, f]),
        }
    };
    result.into()
}

fn pass_on(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    next!(
        c"syscall",
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        number,
        a,
        b,
        c,
        d,
        e,
        f
    )
}
