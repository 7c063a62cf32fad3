// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of `include/reprieve/hint_abi.h`, in Rust.

use super::State;
use crate::thread::{LINES, Line};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64};

pub const VERSION: u32 = 1;
pub const MAGIC: u32 = 1_953_392_754;
pub const STALE_NS: u64 = 2_000_000_000;
pub const STATE_BITS: u32 = 2;
pub const CPUS: usize = 1024;
pub const PROCESSES: usize = 64;

pub(super) fn state(word: u32) -> Option<State> {
    match word & ((1 << STATE_BITS) - 1) {
        1 => Some(State::Running),
        2 => Some(State::Preempted),
        3 => Some(State::Blocked),
        _ => None,
    }
}

/// The message that a process sends.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Hello {
    pub magic: u32,
    pub version: u32,
    pub block: i64,
    pub reader: i64,
    pub table: u64,
    pub lines: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Welcome {
    pub magic: u32,
    pub version: u32,
    pub pad: [u32; 2],
    pub key: u64,
}

#[repr(C)]
pub struct Cpu {
    pub runnable: AtomicU32,
    pad: [u32; 15],
}

#[repr(C)]
pub struct Thread {
    pub state: AtomicU32,
    pad: [u32; 3],
}

#[repr(C)]
pub struct Page {
    pub magic: AtomicU32,
    pub version: AtomicU32,
    pub beat: AtomicU64,
    pub waiting: AtomicU32,
    pad: [u32; 11],
    pub keys: [AtomicU64; PROCESSES],
    pub cpus: [Cpu; CPUS],
    pub threads: [Thread; PROCESSES * LINES],
}

// As the header has it; a C compiler is asked by the tests of `reprieve-capi`.
const _: () = assert!(
    size_of::<Line>() == 64
        && offset_of!(Line, generation) == 8
        && offset_of!(Line, cpu) == 12
        && offset_of!(Line, thread) == 16
        && offset_of!(Line, waited) == 24
        && offset_of!(Line, slot) == 32
        && size_of::<Hello>() == 40
        && size_of::<Welcome>() == 24
        && offset_of!(Page, beat) == 8
        && offset_of!(Page, waiting) == 16
        && offset_of!(Page, keys) == 64
        && offset_of!(Page, cpus) == 64 + 8 * PROCESSES
        && offset_of!(Page, threads) == 64 + 8 * PROCESSES + 64 * CPUS
        && size_of::<Thread>() == 16
);
