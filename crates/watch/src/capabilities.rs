// SPDX-License-Identifier: MIT OR Apache-2.0
//! The capabilities that parts of the command need, by name.

/// Their numbers in `linux/capability.h`.
const NUMBERS: [(&str, u32); 7] = [
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_NICE", 23),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// `None` for one that no part needs.
pub fn number(name: &str) -> Option<u32> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|&(_, number)| number)
}

/// Whether `mask`, a bit for each number, has the capability.
pub fn holds(mask: u64, name: &str) -> bool {
    number(name).is_some_and(|number| mask & (1 << number) != 0)
}
