// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's block: the address of its line.
//!
//! On x86-64 it is defined in assembly, of the initial-exec model, so that its distance from the
//! thread pointer is one number for all threads of the process, and reaching it takes no call in
//! shared objects either.

use super::{Line, slice, slot, table};
use crate::platform::clock::keep_errno;
use crate::platform::{barrier, cpu, fork, sys};
use std::ffi::c_void;
#[cfg(not(target_arch = "x86_64"))]
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.reprieve_hint_block,\"awT\",@nobits",
    ".balign 8",
    ".globl reprieve_hint_block",
    ".protected reprieve_hint_block",
    ".type reprieve_hint_block,@object",
    ".size reprieve_hint_block,8",
    "reprieve_hint_block: .zero 8",
    ".popsection",
);

/// Distance of the block from the thread pointer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn block_offset() -> isize {
    let offset: isize;
    // SAFETY: reads a constant that the linker put into the GOT (or into the instruction).
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + reprieve_hint_block@GOTTPOFF]",
            out(reg) offset,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    offset
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn load() -> *const Line {
    let line: *const Line;
    // SAFETY: reads the block, 8 bytes of this thread's own.
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr fs:[{1}]",
            out(reg) line, in(reg) block_offset(),
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    line
}

#[cfg(target_arch = "x86_64")]
fn store(line: *const Line) {
    // SAFETY: writes the block, 8 bytes of this thread's own.
    unsafe {
        std::arch::asm!(
            "mov qword ptr fs:[{1}], {0}",
            in(reg) line, in(reg) block_offset(),
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
thread_local! {
    static BLOCK: AtomicPtr<Line> = const { AtomicPtr::new(std::ptr::null_mut()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn load() -> *const Line {
    BLOCK.with(|block| block.load(Ordering::Relaxed))
}

#[cfg(not(target_arch = "x86_64"))]
fn store(line: *const Line) {
    BLOCK.with(|block| block.store(line.cast_mut(), Ordering::Relaxed));
}

/// The calling thread's line, by its index and its address.
#[inline(always)]
pub(crate) fn me() -> &'static Line {
    let line = load();
    if line.is_null() {
        return register();
    }
    // SAFETY: lines are static.
    unsafe { &*line }
}

/// Whether [`find_out`] has run.
static READY: AtomicBool = AtomicBool::new(false);
/// Ends with [`end`] for each thread that has a line; [`NO_KEY`]: there is none.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// The C library keeps so many of a thread's values without allocating.
const NEAR_KEYS: u32 = 32;

/// Does once what would take system calls or memory in a thread that registers or waits: at load
/// time (`region`), or by a lock that is taken before that.
pub(crate) fn find_out() {
    if READY.swap(true, Ordering::AcqRel) {
        return;
    }
    barrier::find_out();
    fork::find_out();
    sys::find_out();
    cpu::find_out();
    slice::find_out();
    let mut key = 0;
    // SAFETY: `end` lives as long as the image that has this crate, which is not to be unloaded
    // (the C library and the shim are linked so).
    if unsafe { libc::pthread_key_create(&mut key, Some(end)) } == 0 && key < NEAR_KEYS {
        KEY.store(key, Ordering::Relaxed);
    }
}

#[cold]
#[inline(never)]
fn register() -> &'static Line {
    keep_errno(|| {
        find_out();
        let line = table::claim();
        // A signal handler may have registered the thread meanwhile: its line is lost.
        store(line);
        let key = KEY.load(Ordering::Relaxed);
        if line.index() != table::NOBODY && key != NO_KEY {
            // SAFETY: a key of ours.
            unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(line).cast()) };
        }
        slot::give(line);
        line
    })
}

/// The calling thread ends. If destructors after this one take locks, it registers again.
extern "C" fn end(line: *mut c_void) {
    if std::ptr::eq(load(), line.cast()) {
        store(std::ptr::null());
        // SAFETY: lines are static.
        table::give_back(unsafe { &*line.cast::<Line>() });
    }
}

/// In the child of a fork: the forking thread has a new number, and the others do not exist.
pub(crate) fn after_fork() {
    let mut line = load();
    // The child has room for it in the table.
    if std::ptr::eq(line, table::line(table::NOBODY)) {
        line = std::ptr::null();
        store(line);
    }
    table::forget_others(line);
    // SAFETY: null, or static.
    if let Some(line) = unsafe { line.as_ref() } {
        slot::give(line);
    }
}
