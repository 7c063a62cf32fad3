// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that go past this library to the C library's functions.
//!
//! A library that was loaded with `RTLD_DEEPBIND` (PHP's extensions), and a program that asks for
//! the C library's own symbols, find the C library's functions before ours. So when this library is
//! loaded it has each of them begin with a jump to ours. It writes by way of `/proc/self/mem`,
//! which changes this process's copy and needs no memory that is writable and executable. Where
//! that is refused, these calls reach the kernel's IPC.

use crate::calls;
use libc::c_void;
use reprieve_ipc_core::kernel::call;

/// A jump to an address, as one of an instruction set does it: may be jumped to, jump to what
/// follows, and the address follows.
#[cfg(target_arch = "x86_64")]
const JUMP: [u8; 10] = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0, 0, 0, 0];
/// `bti c`, `ldr x16, .+8`, `br x16`.
#[cfg(target_arch = "aarch64")]
const JUMP: [u8; 12] = [0x5f, 0x24, 0x03, 0xd5, 0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6];

const LENGTH: usize = JUMP.len() + size_of::<usize>();

/// A symbol, as ELF has it.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        found: *mut libc::Dl_info,
        symbol: *mut *const Symbol,
        flags: libc::c_int,
    ) -> libc::c_int;
}

/// Whether the function at that address is long enough for a jump.
fn has_room(function: *const c_void) -> bool {
    const SYMBOL: libc::c_int = 1;
    let mut symbol: *const Symbol = std::ptr::null();
    // SAFETY: plain data that the call fills in; the symbol is the library's own.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        dladdr1(function, &mut found, &mut symbol, SYMBOL) != 0
            && found.dli_saddr.cast_const() == function
            && symbol.as_ref().is_some_and(|symbol| symbol.size >= LENGTH as u64)
    }
}

/// Leads the C library's functions to ours. While the process has one thread.
pub fn lead_here() {
    // SAFETY: strings; the library stays loaded.
    let library =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let name = c"/proc/self/mem".as_ptr();
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a string.
    let memory = unsafe { call!(SYS_openat, libc::AT_FDCWD, name, flags) };
    let (false, Ok(memory)) = (library.is_null(), memory) else { return };
    for (name, ours) in calls::functions() {
        // SAFETY: a string that ends with a zero, and a library that is loaded.
        let theirs = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
        if theirs.is_null() || theirs as usize == ours || !has_room(theirs) {
            continue;
        }
        let mut jump = [0; LENGTH];
        let (begin, address) = jump.split_at_mut(JUMP.len());
        begin.copy_from_slice(&JUMP);
        address.copy_from_slice(&ours.to_ne_bytes());
        // SAFETY: the function's own bytes are replaced, in which nobody is.
        let _ = unsafe { call!(SYS_pwrite64, memory, jump.as_ptr(), LENGTH, theirs) };
    }
    // SAFETY: ours.
    let _ = unsafe { call!(SYS_close, memory) };
}
