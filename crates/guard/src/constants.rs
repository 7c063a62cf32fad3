// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constants of `bpf/guard.h`, written by build.rs.
#![allow(dead_code)]

include!(concat!(env!("OUT_DIR"), "/guard_constants.rs"));
