// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of the crate in a process may be a lookup in a signal handler, which may have
//! interrupted the allocator: so it must not allocate. A process of its own, since any other test
//! would come first.

#[allow(dead_code, reason = "not every test needs all of it")]
mod common;

use common::Cell;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::*};

/// Counts what the thread of a handler allocates while it runs; the test harness has threads of its
/// own.
struct Counting;

/// The thread that is in a handler, or 0.
static IN_HANDLER: AtomicI32 = AtomicI32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let handler = IN_HANDLER.load(Relaxed);
        // SAFETY: no arguments, always succeeds.
        if handler != 0 && handler == unsafe { libc::gettid() } {
            ALLOCATIONS.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TARGET: AtomicPtr<Cell> = AtomicPtr::new(std::ptr::null_mut());
static READ: AtomicU64 = AtomicU64::new(0);

extern "C" fn read_in_handler(_: i32) {
    // SAFETY: the cell is never replaced, and set before the signal.
    unsafe {
        IN_HANDLER.store(libc::gettid(), SeqCst);
        let cell = &*TARGET.load(SeqCst);
        let node = reprieve::protect(&cell.node()).unwrap();
        READ.store(reprieve::lookup(&cell.value()) + node.value, SeqCst);
    }
    drop(reprieve::read_lock());
    IN_HANDLER.store(0, SeqCst);
}

#[test]
fn a_handler_that_comes_first_allocates_nothing() {
    TARGET.store(Box::into_raw(Box::new(Cell::new(3))), SeqCst);
    // SAFETY: the handler reads only, which it may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = read_in_handler as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
        libc::raise(libc::SIGUSR2);
    }
    assert_eq!(READ.load(SeqCst), 6);
    assert_eq!(ALLOCATIONS.load(SeqCst), 0);
}
