// SPDX-License-Identifier: MIT OR Apache-2.0
//! The namespace that this process has open.

use libc::c_int;
use reprieve_ipc_core::kernel::call;
use reprieve_ipc_core::signals::in_a_call;
use reprieve_ipc_core::{
    Errno, Namespace, Result, begin_ipc_namespace, credentials_changed, default_directory, users,
};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// Null, or never freed. Nobody waits for who opens it: in the child of a fork that thread is not
/// there.
static NAMESPACE: AtomicPtr<Namespace> = AtomicPtr::new(std::ptr::null_mut());

/// The namespace, opened on first use. A process that cannot open it is told why, once, and tries
/// again in its next call: it may have been short of descriptors.
#[inline]
pub fn namespace() -> Result<&'static Namespace> {
    // SAFETY: null, or what `open` has leaked.
    match unsafe { NAMESPACE.load(Acquire).as_ref() } {
        Some(opened) => Ok(opened),
        None => open(),
    }
}

/// On standard error, as the kernel's call writes it.
pub fn tell(error: &dyn std::fmt::Display) {
    let text = format!("libreprieve_ipc: {error}\n");
    // SAFETY: bytes that are valid for reads.
    let _ = unsafe { call!(SYS_write, 2, text.as_ptr(), text.len()) };
}

/// In a call: a handler that needs the namespace would wait for its own thread, which registers the
/// process.
#[cold]
fn open() -> Result<&'static Namespace> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let opened = in_a_call(Namespace::open_default).ok_or(Errno(libc::EDEADLK))?;
    let opened = opened.map_err(|error| {
        if !TOLD.swap(true, Relaxed) {
            tell(&error);
        }
        error.errno()
    })?;
    // A thread that opens it at the same time gets the same namespace, and stores a copy.
    let opened = Box::into_raw(Box::new(opened));
    NAMESPACE.store(opened, Release);
    // SAFETY: not null, and never freed.
    Ok(unsafe { &*opened })
}

/// Opens the namespace if there is one, and what of it may be out of reach later: behind a seccomp
/// filter, too.
pub fn prepare(filter: bool) {
    if Namespace::is_there(default_directory()) == Ok(true) {
        let _ = namespace().map(|n| n.prepare(filter));
    }
}

/// After `unshare`: applies the adjustments of a process with one thread. Those of others stay the
/// process's.
pub fn leave_adjustments() {
    // SAFETY: touches no memory, and does nothing: it only fails if there are other threads.
    let alone = unsafe { call!(SYS_unshare, libc::CLONE_THREAD) }.is_ok();
    // SAFETY: null, or what `open` has leaked.
    if let Some(opened) = unsafe { NAMESPACE.load(Acquire).as_ref() }.filter(|_| alone) {
        let _ = opened.apply_adjustments();
    }
}

/// The process is in other namespaces, of those kinds. They have just begun if it is told who it
/// was `before`.
pub fn namespaces_changed(kinds: c_int, before: Option<[u32; 2]>) {
    if kinds & (libc::CLONE_NEWUSER | libc::CLONE_NEWIPC) != 0 {
        credentials_changed();
    }
    if let Some(before) = before.filter(|_| kinds & libc::CLONE_NEWUSER != 0) {
        users::has_begun(before);
    }
    if kinds & libc::CLONE_NEWIPC != 0 {
        NAMESPACE.store(std::ptr::null_mut(), Release);
        if before.is_some() {
            begin_ipc_namespace();
        }
    }
}
