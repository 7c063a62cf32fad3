// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's membarrier.

pub(crate) const MEMBARRIER_QUERY: i32 = 0;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
pub(crate) const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
pub(crate) const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

/// `membarrier(command, 0, 0)`: the result, or -1.
pub(crate) fn membarrier(command: i32) -> i64 {
    membarrier_on(command, None)
}

/// The same for the thread that runs on one CPU.
pub(crate) fn membarrier_on(command: i32, cpu: Option<usize>) -> i64 {
    const ONE_CPU: u32 = 1;
    let flags = if cpu.is_some() { ONE_CPU } else { 0 };
    // SAFETY: membarrier reads no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu.unwrap_or(0) as libc::c_int) }
}
