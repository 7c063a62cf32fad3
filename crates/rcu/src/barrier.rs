// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two halves of an asymmetric fence, and its three strengths.
//!
//! Whenever a thread executes [`light`] and another executes [`heavy`], it is as if both had executed a sequentially consistent
//! fence. With membarrier the light half costs nothing at run time and the heavy half one system call; without it both
//! are fences ([`Kind::Fence`]). [`Kind::Restart`] is membarrier's variant that moreover sends every running restartable section back to its
//! start; the kernel's handler executes a full fence before it does (`ipi_rseq` in kernel/sched/membarrier.c), so it is heavy too.
//!
//! A thread that does not run at that moment was descheduled, which is a full fence, and enters user mode again
//! through the code that sends a restartable section back to its start. Leaders have a third way to make the heavy half: `visit`.

#[cfg(not(loom))]
use crate::sys::{MEMBARRIER_PRIVATE_EXPEDITED, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ};

/// How the heavy half is done. Fixed for the life of the process: `startup.rs` decides.
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

/// The reclaimer's half.
#[cfg(not(loom))]
pub(crate) fn heavy(kind: Kind, _: &crate::registry::Registry) {
    match kind {
        Kind::Fence => std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst),
        Kind::Membarrier => call(MEMBARRIER_PRIVATE_EXPEDITED, None),
        Kind::Restart => restart_all(),
    }
}

/// The same for a caller that may sleep instead of spinning: see `visit`.
#[cfg(not(loom))]
pub(crate) fn patient(kind: Kind, registry: &crate::registry::Registry) {
    if kind == Kind::Fence || !crate::visit::preferred() {
        heavy(kind, registry);
    } else {
        // Without a deadline it is done.
        crate::visit::heavy(None);
    }
}

#[cfg(loom)]
pub(crate) use heavy as patient;

/// What `heavy` does for [`Kind::Restart`].
#[cfg(not(loom))]
pub(crate) fn restart_all() {
    call(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, None);
}

/// The same for what runs on one CPU, if there is one of that number.
#[cfg(not(loom))]
pub(crate) fn restart_one(cpu: usize) {
    #[cfg(reprieve_fault)]
    if crate::fault::is(crate::fault::Fault::SkipOne) {
        return;
    }
    call(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, Some(cpu));
}

#[cfg(not(loom))]
fn call(command: i32, cpu: Option<usize>) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(reprieve_fault)]
    if crate::fault::is(crate::fault::Fault::SkipMembarrier) {
        return;
    }
    if crate::sys::membarrier_on(command, cpu) != 0 {
        // Readers rely on it already: there is no safe way on.
        crate::sys::die(
            "membarrier worked at start-up and fails now (a seccomp filter installed later?)",
        );
    }
}

/// In a model the restart is an interrupt on each reader's CPU, between two of its instructions.
#[cfg(loom)]
pub(crate) fn heavy(kind: Kind, registry: &crate::registry::Registry) {
    loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    if kind == Kind::Restart {
        registry.records().for_each(|r| r.cpu.lock().unwrap().interrupt());
    }
}
