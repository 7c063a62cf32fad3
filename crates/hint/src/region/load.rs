// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens when the image is loaded, and in the child of a fork. When it is loaded, no lock is
//! held yet, and no filter of the program's forbids the system calls.

use super::{Missing, map};
use crate::platform::cancel::CancelDisabled;
use crate::platform::{clock, fork};
use crate::thread;
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Inside a guest: has this process's hints reach the host, and the host's answers this process, if
/// the host offers a region. A process does the same when it is loaded; this says why there is
/// none.
///
/// # Errors
/// Without effect: locks wait by what they find out themselves.
pub fn connect_host() -> Result<(), Missing> {
    // Programs are not told that this is a cancellation point.
    let _whole = CancelDisabled::new();
    let named = variable(c"REPRIEVE_HINT_REGION");
    if named.as_deref() == Some("off".as_ref()) {
        return Err(Missing::Off);
    }
    map(named.as_ref().map(Path::new))
}

/// An environment variable. Read without the lock of the standard library, which another thread may
/// hold for ever in the child of a fork.
fn variable(name: &CStr) -> Option<OsString> {
    // SAFETY: who changes the environment answers for those who read it at that moment; getenv
    // returns null or a string. A program with more privileges than its caller ignores it.
    unsafe {
        let secure = libc::getauxval(libc::AT_SECURE) != 0;
        let found = libc::getenv(name.as_ptr());
        let bytes = (!secure && !found.is_null()).then(|| CStr::from_ptr(found).to_bytes());
        bytes.map(|bytes| OsStr::from_bytes(bytes).to_owned())
    }
}

#[used]
#[unsafe(link_section = ".init_array.00100")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    clock::keep_errno(|| {
        thread::find_out();
        // SAFETY: the function lives as long as the image, as the key's destructor (`thread`).
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        let _ = connect_host();
    });
}

extern "C" fn after_fork() {
    fork::forget();
    thread::after_fork();
}
