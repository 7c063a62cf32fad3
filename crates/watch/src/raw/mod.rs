// SPDX-License-Identifier: MIT OR Apache-2.0
//! The border to the kernel: loading the eBPF program, memory shared with it, other processes'
//! memory.

pub mod clock;
mod confine;
mod process;
mod program;
mod shared;
mod times;

pub use confine::confine;
pub use process::read_process;
pub use program::{Program, Settings, costs_in, refused, storage};
pub use shared::{Plain, Shared};
pub use skeleton::types;
pub use times::{Step, Times};

/// The constants of `bpf/watch.h`, written by build.rs.
#[allow(dead_code)]
pub mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}

/// Written by libbpf-cargo from `bpf/watch.bpf.c`.
#[allow(clippy::undocumented_unsafe_blocks, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));
}
