// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks' needs of the kernel and the processor: atomics and futexes in the real and the
//! model's form, the asymmetric fence, clocks, rseq's CPU number, cancellation, which process this
//! is after forks.
//!
//! Stands on no other folder.

pub(crate) mod barrier;
pub(crate) mod end;
pub(crate) mod fork;
pub(crate) mod sync;

#[cfg(not(loom))]
pub(crate) mod cancel;
#[cfg(not(loom))]
pub(crate) mod clock;
#[cfg(not(loom))]
pub(crate) mod cpu;
#[cfg(loom)]
pub(crate) mod env;
#[cfg(not(loom))]
pub(crate) mod sys;
