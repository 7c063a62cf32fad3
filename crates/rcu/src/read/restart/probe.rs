// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out whether this kernel aborts interrupted sections. A section is armed and spins; a
//! helper thread preempts it, or calls the membarrier, and *then* sets a flag. A section that sees
//! the flag went on where it should have started over.
//!
//! The helper is a bare thread (clone without the C library, system calls only), because the first
//! lookup of a process may happen in a signal handler, where creating a thread with the C library
//! could deadlock in malloc. Takes well under a millisecond on an idle machine.

use super::arch;
use crate::platform::facts::Restartable;
use crate::platform::{rseq, sys};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Shared with the helper and with the assembly of the probe.
#[repr(C)]
pub(crate) struct Probe {
    /// The section is armed and runs (or has ended already).
    pub(crate) entered: AtomicU32,
    /// The CPU it was armed on.
    pub(crate) cpu: AtomicU32,
    /// The helper has interrupted it by now.
    pub(crate) stop: AtomicU32,
    /// The helper's action: `PREEMPT` or `MEMBARRIER`.
    how: u32,
    /// The real-time priority that the helper needs to preempt the section; 0: none.
    priority: i32,
    /// 0 if the helper's system calls succeeded.
    error: AtomicU32,
    /// Cleared by the kernel when the helper has exited.
    alive: AtomicU32,
}

const PREEMPT: u32 = 0;
const MEMBARRIER: u32 = 1;

/// Outcome of a probe that ran to its end. (Aborted: `arch::probe` returns `None`.)
pub(crate) const SAW_STOP: u32 = 2;

#[derive(PartialEq)]
enum Outcome {
    Aborted,
    WentOn,
    Unknown,
}

/// Called with signals blocked.
pub(super) fn run() -> Restartable {
    for how in [PREEMPT, MEMBARRIER] {
        let outcome = (0..3).map(|_| once(how)).find(|o| *o != Outcome::Unknown);
        match outcome {
            Some(Outcome::Aborted) => {}
            Some(Outcome::WentOn) => return Restartable::SelfTestFailed,
            _ => return Restartable::SelfTestInconclusive,
        }
    }
    Restartable::Yes
}

fn once(how: u32) -> Outcome {
    let Some(cs) = rseq::rseq_cs() else {
        return Outcome::Unknown;
    };
    let probe = Probe {
        entered: AtomicU32::new(0),
        cpu: AtomicU32::new(0),
        stop: AtomicU32::new(0),
        how,
        priority: sys::real_time_priority().map_or(0, |priority| priority + 1),
        error: AtomicU32::new(0),
        alive: AtomicU32::new(1),
    };
    const STACK: usize = 64 * 1024;
    let stack = sys::map_pages(STACK);
    if stack.is_null() {
        return Outcome::Unknown;
    }
    // SAFETY: the stack and `probe` outlive the helper: we wait for its end below.
    let started = unsafe { arch::start_helper(stack.add(STACK), helper, &probe, &probe.alive) };
    let mut outcome = Outcome::Unknown;
    if let Some(thread) = started {
        let result = arch::probe(&probe, cs);
        let cpu = rseq::current_cpu(cs);
        // A section that was aborted at its very start has not set it, and the helper waits for it.
        probe.entered.store(1, Ordering::Release);
        let mut waits = 0u32;
        while probe.alive.load(Ordering::Acquire) != 0 {
            waits += 1;
            // A real-time thread may keep it from its one CPU for ever. It may bind itself later.
            if waits % HELPER_WAITS == 0 {
                sys::unbind(thread);
            }
            wait_for_exit(&probe.alive);
        }
        let preempted_here = probe.cpu.load(Ordering::Relaxed) == cpu;
        outcome = match result {
            _ if probe.error.load(Ordering::Relaxed) != 0 => Outcome::Unknown,
            None => Outcome::Aborted,
            // The helper ran on the section's CPU, or its membarrier returned, while the section
            // was armed. Unless the section is elsewhere now: then it may have moved between
            // reading its CPU number and the helper's arrival.
            Some(SAW_STOP) if how == MEMBARRIER || preempted_here => Outcome::WentOn,
            Some(_) => Outcome::Unknown,
        };
    }
    // SAFETY: the helper, if it was started, has exited; nothing else knows the stack.
    unsafe { libc::munmap(stack.cast(), STACK) };
    outcome
}

/// Each so many waits of up to a millisecond the helper is allowed to run on any CPU.
const HELPER_WAITS: u32 = 100;

/// The kernel's wake-up at a thread's exit is a shared one, so the wait must be too.
fn wait_for_exit(alive: &AtomicU32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: `alive` and `time` outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, alive.as_ptr(), libc::FUTEX_WAIT, 1, &time) };
}

/// Runs on a thread without thread-local storage of its own: no call into the C library, nothing
/// that may panic.
unsafe extern "C" fn helper(probe: *const Probe) {
    // SAFETY: `once` keeps the probe alive until this thread has exited.
    let probe = unsafe { &*probe };
    let pause =
        libc::timespec { tv_sec: 0, tv_nsec: Duration::from_micros(20).subsec_nanos() as i64 };
    while probe.entered.load(Ordering::Acquire) == 0 {
        // SAFETY: `pause` outlives the call.
        unsafe { arch::raw_syscall(libc::SYS_nanosleep, &raw const pause as usize, 0, 0) };
    }
    if probe.priority != 0 {
        let priority = sys::sched_param(probe.priority);
        // If that is not allowed, the section spins until it gives up.
        // SAFETY: the parameter is valid.
        unsafe {
            arch::raw_syscall(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_FIFO as usize,
                &raw const priority as usize,
            )
        };
    }
    let result = if probe.how == PREEMPT {
        let cpu = probe.cpu.load(Ordering::Relaxed) as usize;
        let mut set = [0u64; 128];
        if cpu >= 64 * set.len() {
            1
        } else {
            set[cpu / 64] |= 1 << (cpu % 64);
            // SAFETY: the set is valid for its size. The call returns on that CPU, so that the
            // section does not run there.
            unsafe {
                arch::raw_syscall(
                    libc::SYS_sched_setaffinity,
                    0,
                    size_of_val(&set),
                    set.as_ptr() as usize,
                )
            }
        }
    } else {
        // SAFETY: membarrier reads no memory of ours.
        unsafe {
            arch::raw_syscall(
                libc::SYS_membarrier,
                sys::MEMBARRIER_PRIVATE_EXPEDITED_RSEQ as usize,
                0,
                0,
            )
        }
    };
    probe.error.store((result != 0) as u32, Ordering::Relaxed);
    probe.stop.store(1, Ordering::Release);
}
