// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a CPU of the kernel spins until another CPU has answered a call, or while the owner of a
//! mutex runs. (Spin locks are not among them: whoever waits there is in a section like others.)

use crate::kernel::Kernel;
use std::ops::Range;

/// A function of the kernel in which a CPU spins for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spin {
    /// Kernel addresses.
    pub code: Range<u64>,
    /// The CPU spins while the owner of a mutex runs; else for an answer.
    pub for_owner: bool,
}

/// Functions that spin for answers as long as they run, or for nearly all of it.
const FOR_ANSWER: [&str; 3] =
    ["smp_call_function_many_cond", "smp_call_function_single", "multi_cpu_stop"];

/// Functions that spin while the owner of a mutex or semaphore runs. Slow paths also sleep, but a
/// CPU that is found in them with preemption off spins.
const FOR_OWNER: [&str; 5] = [
    "osq_lock",
    "mutex_spin_on_owner",
    "__mutex_lock",
    "rwsem_spin_on_owner",
    "rwsem_down_write_slowpath",
];

/// The longest function that is believed. Symbols are the guest's word.
const LONGEST: u64 = 16 << 10;

/// Stretches of code that are kept. Compilers split a function in a few parts.
const SPINS_MAX: usize = 64;

/// The code of these functions, also of parts that the compiler has split off, in the order of
/// their addresses.
pub fn code(kernel: &Kernel) -> Vec<Spin> {
    let symbols = &kernel.symbols;
    let found = symbols.iter().filter(|s| !s.name.contains(".cold")).filter_map(|s| {
        let name = s.name.split('.').next()?;
        let for_owner = FOR_OWNER.contains(&name);
        if !for_owner && !FOR_ANSWER.contains(&name) {
            return None;
        }
        let end = symbols.after(s.address)?;
        let inside = kernel.image.contains(&s.address) && end <= kernel.image.end;
        (inside && end - s.address <= LONGEST).then_some(Spin { code: s.address..end, for_owner })
    });
    let mut spins: Vec<_> = found.take(SPINS_MAX).collect();
    spins.sort_by_key(|spin| spin.code.start);
    spins.dedup();
    spins
}
