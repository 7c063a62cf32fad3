// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's block: the address of its line.
//!
//! On x86-64 it is defined in assembly, of the initial-exec model, so that its distance from the
//! thread pointer is one number for all threads of the process (an eBPF program follows it), and
//! reaching it takes no call in shared objects either.

use super::Line;
use super::table;
use crate::platform::fork;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

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
/// In the child of a fork, until the forking thread's next hint: that thread, as the C library
/// names it, which a fork does not change; and its line.
static FORKER: AtomicUsize = AtomicUsize::new(0);
static FORKED: AtomicPtr<Line> = AtomicPtr::new(std::ptr::null_mut());

/// The line that this thread had when it forked this process, if it has given no hint since.
fn forked() -> *const Line {
    // SAFETY: no preconditions.
    let mine = FORKER.load(Ordering::Relaxed) == unsafe { libc::pthread_self() } as usize;
    if mine { FORKED.load(Ordering::Relaxed) } else { std::ptr::null() }
}

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
        // SAFETY: lines are static.
        let line = match unsafe { forked().as_ref() } {
            Some(line) => {
                // If that thread has ended, and this one has its name: as with a line of the table.
                line.thread.store(crate::platform::sys::thread_id(), Ordering::Release);
                line
            }
            None => table::claim(),
        };
        let _ = line.enable_slices();
        // A signal handler may have registered the thread meanwhile: its line is lost until the
        // table is full and it is found that the thread has another.
        store(line);
        if std::ptr::eq(forked(), line) {
            FORKER.store(0, Ordering::Relaxed);
        }
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
///
/// The process is registered by the thread's next hint, which finds its block empty, and not here:
/// registration uses the heap, files and the environment, and a fork may be in any state of the
/// program.
extern "C" fn after_fork() {
    // A fork is no cancellation point, and the end of a connection is one.
    let _whole = crate::platform::cancel::CancelDisabled::new();
    fork::forget();
    // The page tells about the parent's threads.
    crate::page::forget();
    let line = load();
    let line = if line.is_null() { forked() } else { line };
    // The child has room for it in the table.
    let line = if std::ptr::eq(line, table::line(table::NOBODY)) { std::ptr::null() } else { line };
    table::forget_others(line);
    FORKED.store(line.cast_mut(), Ordering::Relaxed);
    // SAFETY: no preconditions.
    FORKER.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    store(std::ptr::null());
}
