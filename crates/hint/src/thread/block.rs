// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's block: the address of its line.
//!
//! On x86-64 it is defined in assembly, of the initial-exec model, so that its distance from the
//! thread pointer is one number for all threads of the process (an eBPF program follows it), and
//! reaching it takes no call in shared objects either.

use super::Line;
use super::table;
use crate::platform::fork;
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
pub(crate) fn block_offset() -> isize {
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

/// Not known here: eBPF programs see no hints on this architecture.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn block_offset() -> isize {
    0
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

/// Which process has begun to register. Not a `Once`: a child that is forked meanwhile would wait.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// [`me`], but the caller registers the process.
pub(crate) fn begin() {
    PROCESS.store(fork::epoch(), Ordering::Relaxed);
    me();
}

#[cold]
#[inline(never)]
fn register() -> &'static Line {
    static HANDLER: AtomicBool = AtomicBool::new(false);
    crate::platform::sys::keep_errno(|| {
        crate::platform::barrier::find_out();
        let line = table::claim();
        let _ = line.enable_slices();
        // A signal handler may have registered the thread meanwhile: its line is lost until the
        // table is full and it is found that the thread has another.
        store(line);
        if !HANDLER.swap(true, Ordering::Relaxed) {
            // SAFETY: the function lives as long as the image that has this crate. A shared object
            // with it is not to be unloaded (the C library and the shim are linked so).
            unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        }
        if PROCESS.swap(fork::epoch(), Ordering::Relaxed) != fork::epoch() {
            crate::page::register();
        }
        crate::page::give_slot(line);
        line
    })
}

/// In the child: the forking thread has a new number, and the others do not exist.
extern "C" fn after_fork() {
    // A fork is no cancellation point, and the end of a connection is one.
    let _whole = crate::platform::cancel::CancelDisabled::new();
    fork::forget();
    PROCESS.store(fork::epoch(), Ordering::Relaxed);
    // The page tells about the parent's threads.
    crate::page::forget();
    let line = load();
    table::forget_others(line);
    crate::page::register();
    // SAFETY: lines are static; null before the thread's first hint.
    if let Some(line) = unsafe { line.as_ref() } {
        crate::page::give_slot(line);
    }
}
