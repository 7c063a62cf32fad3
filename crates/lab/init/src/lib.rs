// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of `reprieve-init` that the lab shares with it: the protocol, and how both measure
//! what interrupts cost.

pub mod gaps;
pub mod protocol;
