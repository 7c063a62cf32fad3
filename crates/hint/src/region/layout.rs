// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of `include/reprieve/hint_region.h`, in Rust.

use crate::thread::{PROBES, SLOTS, Slot};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

pub const VERSION: u32 = 1;
pub const MAGIC: u32 = 1_734_701_682;
pub const BYTES: usize = 1_048_576;
pub const VCPUS: usize = 1024;
/// In place of what a host that stopped had said.
pub const STALE_NS: u64 = 2_000_000_000;
pub const PREEMPTED: u32 = 2;

#[repr(C)]
pub struct Vcpu {
    pub state: AtomicU32,
    pub runnable: AtomicU32,
}

#[repr(C)]
pub struct Region {
    pub magic: AtomicU32,
    pub version: AtomicU32,
    pub beat: AtomicU64,
    pad: [u32; 12],
    pub vcpus: [Vcpu; VCPUS],
    unused: [u32; 129_008],
    pub slots: [Slot; SLOTS],
}

// As the header has it; a C compiler is asked by the tests of `reprieve-capi`.
const _: () = assert!(
    size_of::<Region>() == BYTES
        && offset_of!(Region, beat) == 8
        && offset_of!(Region, vcpus) == 64
        && offset_of!(Region, slots) == BYTES / 2
        && size_of::<Slot>() == 64
        && offset_of!(Slot, non_preemptable) == 4
        && offset_of!(Slot, preemptable) == 8
        && PROBES == 4
);
