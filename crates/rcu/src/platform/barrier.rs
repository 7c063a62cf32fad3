// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two halves of an asymmetric fence, and its three strengths.
//!
//! Whenever one thread executes the light half ([`light`]) and another the heavy half
//! (`grace/heavy.rs`), it is as if both had executed a sequentially consistent fence. With
//! membarrier the light half costs nothing at run time and the heavy half one system call; without
//! it both are fences ([`Kind::Fence`]).
//! [`Kind::Restart`] is membarrier's variant that moreover sends every running restartable section
//! back to its start; the kernel's handler executes a full fence before it does (`ipi_rseq` in
//! kernel/sched/membarrier.c), so it is heavy too.
//!
//! A thread that does not run at that moment was descheduled, which is a full fence, and enters
//! user mode again through the code that sends a restartable section back to its start. Leaders
//! have another way to make the heavy half: `grace/cpu_threads`.

#[cfg(not(loom))]
use crate::platform::sys::{MEMBARRIER_PRIVATE_EXPEDITED, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ};

/// How the heavy half is done. Fixed for the life of the process: `facts.rs` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fence,
    #[cfg_attr(loom, allow(dead_code))]
    Membarrier,
    Restart,
}

/// The reader's half, where membarrier does the other one.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn light() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(loom)]
pub(crate) fn light() {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
}

/// The reclaimer's half of [`Kind::Fence`] and [`Kind::Membarrier`].
#[cfg(not(loom))]
pub(crate) fn fence_all(kind: Kind) {
    match kind {
        Kind::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
        Kind::Membarrier | Kind::Restart => call(MEMBARRIER_PRIVATE_EXPEDITED, None),
    }
}

/// The same for [`Kind::Restart`]: sends every restartable section back to its start.
#[cfg(not(loom))]
pub(crate) fn restart_all() {
    call(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, None);
}

/// The same for the thread on one CPU. Nothing happens if there is no CPU of that number.
#[cfg(not(loom))]
pub(crate) fn restart_one(cpu: usize) {
    #[cfg(reprieve_fault)]
    if crate::platform::fault::is(crate::platform::fault::Fault::SkipOne) {
        return;
    }
    call(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, Some(cpu));
}

#[cfg(not(loom))]
fn call(command: i32, cpu: Option<usize>) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(reprieve_fault)]
    if crate::platform::fault::is(crate::platform::fault::Fault::SkipMembarrier) {
        return;
    }
    if crate::platform::sys::membarrier_on(command, cpu) != 0 {
        // Readers already rely on it: no grace period would be safe any more.
        crate::platform::sys::die(
            "membarrier worked at start-up and fails now (a seccomp filter installed later?)",
        );
    }
}
