// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a CPU of the kernel spins until another CPU has done something: released a lock, answered
//! a call.

use crate::kernel::Kernel;
use std::ops::Range;

/// Functions that spin for as long as they run, or for nearly all of it. The slow paths of mutexes
/// and semaphores also sleep, but a CPU that is found in them with preemption off spins.
const FUNCTIONS: [&str; 12] = [
    "native_queued_spin_lock_slowpath",
    "__pv_queued_spin_lock_slowpath",
    "queued_read_lock_slowpath",
    "queued_write_lock_slowpath",
    "osq_lock",
    "mutex_spin_on_owner",
    "__mutex_lock",
    "rwsem_spin_on_owner",
    "rwsem_down_write_slowpath",
    "smp_call_function_many_cond",
    "smp_call_function_single",
    "multi_cpu_stop",
];

/// The longest function that is believed. Symbols are the guest's word.
const LONGEST: u64 = 16 << 10;

/// Stretches of code that are kept. Compilers split a function in a few parts.
const RANGES_MAX: usize = 64;

/// The code of these functions, also of parts that the compiler has split off, in the order of
/// their addresses.
pub fn code(kernel: &Kernel) -> Vec<Range<u64>> {
    let symbols = &kernel.symbols;
    let base = |name: &str| name.split('.').next().is_some_and(|name| FUNCTIONS.contains(&name));
    let wanted = symbols.iter().filter(|s| base(s.name) && !s.name.contains(".cold"));
    let ranges = wanted.filter_map(|s| {
        let end = symbols.after(s.address)?;
        let inside = kernel.image.contains(&s.address) && end <= kernel.image.end;
        (inside && end - s.address <= LONGEST).then_some(s.address..end)
    });
    let mut ranges: Vec<_> = ranges.take(RANGES_MAX).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    ranges
}
