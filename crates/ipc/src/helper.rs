// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files for a process that has no number left for a descriptor: the kernel's calls need none.
//!
//! A helper thread has a table of descriptors of its own (`clone` without `CLONE_FILES`), a copy of
//! the program's. It closes some there, of which the program notices nothing, and has their numbers
//! for its files. What the helper maps, the process has mapped. What it locks stays locked until it
//! ends.
//!
//! **Invariant: the helper and its starter never run at the same time**, but for the helper's wait
//! for its end. It has the thread-local storage of its starter.

use crate::error::{Errno, Result};
use crate::kernel::{self, call};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::*;

const NONE_LEFT: Errno = Errno(libc::EMFILE);
/// Numbers that a helper frees: more than a call of this library's has open at a time.
const FREED: usize = 16;
const STACK: usize = 256 << 10;

/// A helper's memory, which is zero at first. Its stack lies above.
#[repr(C, align(16))]
struct Memory {
    state: AtomicU32,
    /// The helper's number. The kernel clears it when the helper has ended.
    life: AtomicU32,
}

const DONE: u32 = 1;
const MAY_END: u32 = 2;

/// A helper that has done its work. It ends, and closes its files, when this is dropped.
pub(crate) struct Helper(&'static Memory);

/// Work, and its result.
struct Work<F, R> {
    f: Option<F>,
    result: Option<R>,
    memory: &'static Memory,
}

extern "C" fn run<F: FnOnce() -> R, R>(work: *mut Work<F, R>) {
    // SAFETY: the starter's, which waits.
    let (memory, work) = unsafe { ((*work).memory, &mut *work) };
    for number in 0..FREED {
        // SAFETY: a copy that nobody else has.
        let _ = unsafe { call!(SYS_close, number) };
    }
    work.result = work.f.take().map(|f| f());
    set(&memory.state, DONE);
    // From here on the starter runs, and `work` is gone.
    wait_while(&memory.state, |state| state == DONE);
}

fn set(word: &AtomicU32, value: u32) {
    word.store(value, Release);
    // SAFETY: the kernel only uses the address.
    let _ = unsafe { call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

fn wait_while(word: &AtomicU32, waits: impl Fn(u32) -> bool) {
    loop {
        let now = word.load(Acquire);
        if !waits(now) {
            return;
        }
        // SAFETY: `word` outlives the call. Without a time limit.
        let _ = unsafe { call!(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, now, 0) };
    }
}

fn unmap(at: usize) {
    // SAFETY: the memory of a helper that has ended, or was not started.
    let _ = unsafe { call!(SYS_munmap, at, STACK) };
}

impl Helper {
    /// Has a helper run `f`.
    ///
    /// # Errors
    /// `EMFILE`, if there can be none.
    pub fn start<R>(f: impl FnOnce() -> R) -> Result<(Helper, R)> {
        if kernel::is_filtered() {
            return Err(NONE_LEFT);
        }
        // Signals of the process go to its own threads.
        let signals = kernel::block(libc::SIG_BLOCK, kernel::ALL_SIGNALS);
        let started = Helper::start_with_signals_blocked(f);
        kernel::block(libc::SIG_SETMASK, signals);
        started
    }

    fn start_with_signals_blocked<R>(f: impl FnOnce() -> R) -> Result<(Helper, R)> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { call!(SYS_mmap, 0, STACK, protection, flags, usize::MAX, 0) };
        let at = at.or(Err(NONE_LEFT))?;
        // SAFETY: zeroes, which stay until the helper has ended.
        let memory = unsafe { &*(at as *const Memory) };
        let mut work = Work { f: Some(f), result: None, memory };
        // SAFETY: the stack is the helper's; the work stays until the helper has done it.
        let started =
            unsafe { kernel::start_thread(at + STACK, &memory.life, run_of(&work), &raw mut work) };
        if started.is_err() {
            unmap(at);
            return Err(NONE_LEFT);
        }
        let helper = Helper(memory);
        wait_while(&memory.state, |state| state != DONE);
        work.result.map(|result| (helper, result)).ok_or(NONE_LEFT)
    }
}

fn run_of<F: FnOnce() -> R, R>(_: &Work<F, R>) -> extern "C" fn(*mut Work<F, R>) {
    run::<F, R>
}

impl Drop for Helper {
    fn drop(&mut self) {
        let Memory { state, life } = self.0;
        set(state, MAY_END);
        wait_while(life, |life| life != 0);
        unmap(std::ptr::from_ref(self.0).expose_provenance());
    }
}

/// Runs `f`, and once more in a helper if there was no number left for its files.
pub(crate) fn with_files<R>(f: impl Fn() -> Result<R>) -> Result<R> {
    match f() {
        Err(NONE_LEFT) => Helper::start(f).and_then(|(_helper, result)| result),
        done => done,
    }
}
