// SPDX-License-Identifier: MIT OR Apache-2.0
//! The border to the kernel: loading the eBPF program, memory shared with it, other processes' memory.

mod confine;
mod process;
mod program;
mod shared;

pub use confine::confine;
pub use process::read_process;
pub use program::{Program, Settings, count_run_time, median_ns};
pub use shared::Plain;
pub use skeleton::types;

/// Written by libbpf-cargo from `bpf/watch.bpf.c`.
#[allow(clippy::undocumented_unsafe_blocks, clippy::all, clippy::pedantic)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/watch.skel.rs"));
}
