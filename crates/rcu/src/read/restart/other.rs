// SPDX-License-Identifier: MIT OR Apache-2.0
//! Architectures without restartable sections yet: every lookup runs in a plain section.
//!
//! For aarch64 the assembly goes into a file of its own next to `x86_64.rs`, with the same items:
//! the descriptor and abort handler (signature 0xd428bc00), `arm`/`disarm` as a store to `tpidr_el0
//! + __rseq_offset + 8`, `enter!` with x19-x30, d8-d15 and sp, the probe, and `start_helper`;
//! filling a slot is `stlr` there. Linux 6.19 on arm64 did not abort every preempted section: the
//! self-test decides.

use super::selftest::Probe;
use std::sync::atomic::AtomicU32;

pub(crate) fn describe_section() {}

pub(crate) fn probe(_: &Probe, _: usize) -> Option<u32> {
    Some(0)
}

pub(crate) unsafe fn raw_syscall(_: i64, _: usize, _: usize, _: usize) -> isize {
    -1
}

pub(crate) unsafe fn start_helper(
    _: *mut u8,
    _: unsafe extern "C" fn(*const Probe),
    _: &Probe,
    _: &AtomicU32,
) -> Option<u32> {
    None
}
