// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loader's functions, in front of the C library's: whoever looks for a lock's function gets
//! ours, in whatever library and version. Else two halves of a program would take the same lock in
//! two ways. `dlopen` loads no library that prefers its own symbols, and so the C library's locks.
//!
//! The loader goes by the address to which its function returns. So these are no functions of
//! Rust's: they jump to the C library's, as if they had not been there.

use crate::next::Next;
use crate::{condition as c, image, layout, mutex as m, read_write as rw, time};
use std::ffi::{CStr, c_char, c_void};

// handle in rdi, name or flags in rsi, version in rdx.
#[cfg(target_arch = "x86_64")]
macro_rules! in_front_of {
    ($name:literal, $function:ident, $change:literal) => {
        std::arch::global_asm!(
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "call {function}",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            $change,
            "test rdx, rdx",
            "jnz 2f",
            "mov rdx, rcx",
            "jmp rax",
            "2: ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            function = sym $function,
        );
    };
}

#[cfg(target_arch = "x86_64")]
in_front_of!("dlsym", find, "");
#[cfg(target_arch = "x86_64")]
in_front_of!("dlvsym", find_version, "");
#[cfg(target_arch = "x86_64")]
in_front_of!("dlopen", load, "and esi, ~8"); // RTLD_DEEPBIND

/// In rax and rdx: what to return, and not 0; or the function that is to do the work, and 0.
#[repr(C)]
struct Answer(*mut c_void, usize);

unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> Answer {
    static NEXT: Next = Next::new(c"dlsym");
    // SAFETY: the caller's promise.
    unsafe { ours(handle, name) }.map_or_else(|| Answer(NEXT.address(), 0), |at| Answer(at, 1))
}

unsafe extern "C" fn find_version(handle: *mut c_void, name: *const c_char) -> Answer {
    static NEXT: Next = Next::new(c"dlvsym");
    // SAFETY: the caller's promise.
    unsafe { ours(handle, name) }.map_or_else(|| Answer(NEXT.address(), 0), |at| Answer(at, 1))
}

extern "C" fn load() -> Answer {
    static NEXT: Next = Next::new(c"dlopen");
    Answer(NEXT.address(), 0)
}

/// The program's function of that name, which there is.
fn programs(name: &CStr) -> *mut c_void {
    // SAFETY: a string; the C library's function has this type.
    unsafe {
        type Find = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
        let dlsym =
            std::mem::transmute::<*mut c_void, Find>(find(libc::RTLD_DEFAULT, name.as_ptr()).0);
        dlsym(libc::RTLD_DEFAULT, name.as_ptr())
    }
}

/// At load time: by which clock callers know the times that they wait for. A library that gives
/// programs another time, and stands in front of ours, asks us by the kernel's.
pub fn find_clocks() {
    let clock = programs(c"clock_gettime");
    let in_front = image::libc(c"clock_gettime") != Some(clock);
    let waits = [
        (&time::LOCKS, c"pthread_mutex_timedlock"),
        (&time::CONDITIONS, c"pthread_cond_timedwait"),
    ];
    for (of, name) in waits {
        if in_front && function(name.to_bytes()) == Some(programs(name)) {
            of.set(clock);
        }
    }
}

macro_rules! functions {
    ($($module:ident: $($function:ident)*;)*) => {
        fn function(name: &[u8]) -> Option<*mut c_void> {
            $($(if name == stringify!($function).as_bytes() {
                return Some($module::$function as *mut c_void);
            })*)*
            None
        }
    };
}

functions! {
    m: pthread_mutex_lock pthread_mutex_trylock pthread_mutex_timedlock pthread_mutex_clocklock
        pthread_mutex_unlock pthread_mutex_destroy;
    c: pthread_cond_init pthread_cond_destroy pthread_cond_signal pthread_cond_broadcast
        pthread_cond_wait pthread_cond_timedwait pthread_cond_clockwait;
    rw: pthread_rwlock_rdlock pthread_rwlock_tryrdlock pthread_rwlock_timedrdlock
        pthread_rwlock_clockrdlock pthread_rwlock_wrlock pthread_rwlock_trywrlock
        pthread_rwlock_timedwrlock pthread_rwlock_clockwrlock pthread_rwlock_unlock;
}

/// Our function of that name. Not where the program's own order of libraries decides, in which a
/// library may stand before this one.
///
/// # Safety
/// The name is a string.
unsafe fn ours(handle: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if handle == libc::RTLD_DEFAULT || !name.starts_with(b"pthread_") || !layout::known() {
        return None;
    }
    function(name)
}
