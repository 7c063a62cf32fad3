// SPDX-License-Identifier: MIT OR Apache-2.0
//! Real VMs, looked into.
//!
//! What is short is part of `make test`; what boots every kernel, or one several times, is marked `ignored` and belongs to `make test-lab`.

mod changes;
mod common;
mod live;
mod qemu;
mod random;
mod vmm;
