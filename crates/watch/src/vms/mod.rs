// SPDX-License-Identifier: MIT OR Apache-2.0
//! The VMs of this host: how they are found, the state of each, and its entries in the arrays
//! shared with the eBPF program.

pub mod discovery;
pub mod finder;
pub mod machine;
mod pace;
mod qemu_registers;
pub mod slots;
pub mod stand_in;
