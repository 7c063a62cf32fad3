// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a CPU of the kernel spins until another CPU has answered a call, or while the owner of a
//! mutex runs; and where it kicks the next owner of a spin lock. (Spinning for a spin lock is not
//! among them: whoever waits there is in a section like others.)

use crate::kernel::Kernel;
use std::ops::Range;

/// A function of the kernel in which a CPU wants another one to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spin {
    /// Kernel addresses.
    pub code: Range<u64>,
    pub why: SpinsFor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinsFor {
    /// The CPU spins until another one has answered a call.
    Answer,
    /// The CPU spins while the owner of a mutex or semaphore runs.
    Owner,
    /// The CPU spins no more: it wakes the one that has the spin lock now.
    Kick,
}

/// These functions spin for as long as they run, or for nearly all of it. Slow paths of mutexes
/// also sleep, but a CPU that is found in them with preemption off spins.
const FUNCTIONS: [(&str, SpinsFor); 9] = [
    ("smp_call_function_many_cond", SpinsFor::Answer),
    ("smp_call_function_single", SpinsFor::Answer),
    ("multi_cpu_stop", SpinsFor::Answer),
    ("osq_lock", SpinsFor::Owner),
    ("mutex_spin_on_owner", SpinsFor::Owner),
    ("__mutex_lock", SpinsFor::Owner),
    ("rwsem_spin_on_owner", SpinsFor::Owner),
    ("rwsem_down_write_slowpath", SpinsFor::Owner),
    ("kvm_kick_cpu", SpinsFor::Kick),
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
        let (_, why) = *FUNCTIONS.iter().find(|(function, _)| *function == name)?;
        let end = symbols.after(s.address)?;
        let inside = kernel.image.contains(&s.address) && end <= kernel.image.end;
        (inside && end - s.address <= LONGEST).then_some(Spin { code: s.address..end, why })
    });
    let mut spins: Vec<_> = found.take(SPINS_MAX).collect();
    spins.sort_by_key(|spin| spin.code.start);
    spins.dedup();
    spins
}
