// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runtime's interface to the kernel, the C library and the processor: system calls, the facts
//! that start-up finds out, fork and exit handlers, atomics in the real and the model's form.
//!
//! Stands on no other folder. It names nothing above itself: fork handlers and the function that
//! runs at a thread's exit are entered from above. Its state is that of the process, written at
//! start-up (`start`, `facts`), by the self-test, and around forks.

pub(crate) mod annotate;
pub(crate) mod barrier;
pub(crate) mod cancel;
pub(crate) mod collect;
#[cfg(loom)]
pub(crate) mod cpu;
pub(crate) mod event;
pub(crate) mod link;
pub(crate) mod lock;
pub(crate) mod sync;

#[cfg(not(loom))]
pub(crate) mod exit;
#[cfg(not(loom))]
pub(crate) mod facts;
#[cfg(all(reprieve_fault, not(loom)))]
pub(crate) mod fault;
#[cfg(not(loom))]
pub(crate) mod fork;
#[cfg(miri)]
mod miri;
#[cfg(not(loom))]
pub(crate) mod rseq;
#[cfg(not(loom))]
pub(crate) mod start;
#[cfg(not(loom))]
pub(crate) mod sys;

#[cfg(loom)]
pub(crate) use std::time::Instant;
#[cfg(not(loom))]
pub(crate) use sys::Instant;
