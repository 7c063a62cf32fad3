// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of `reprieve-init` that the lab shares with it: the protocol.

pub mod protocol;
