// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate against real VMs.
//!
//! Short tests are part of `make test`. Tests that boot every kernel, or one kernel several times,
//! are marked `ignored` and belong to `make test-lab`.

mod common;
mod damage;
mod lifecycle;
mod live;
mod patience;
mod qemu;
mod random;
mod vmm;
