// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computing for a known time: as many steps as take it on a CPU of its own, calibrated once. So
//! work in which the thread loses its CPU is not less for it.

use crate::clock;
use std::hint::black_box;
use std::sync::OnceLock;

/// Steps that cannot be skipped.
#[inline(never)]
pub fn work(steps: u64) {
    let mut x = 1u64;
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
    }
}

/// How many steps take `ns`, on a CPU of its own.
pub fn steps(ns: u64) -> u64 {
    static PER_MS: OnceLock<u64> = OnceLock::new();
    let per_ms = *PER_MS.get_or_init(|| {
        const STEPS: u64 = 100_000;
        // The quickest: nobody else had the CPU.
        let time = |_| {
            let begun = clock::thread_cpu();
            work(STEPS);
            clock::thread_cpu() - begun
        };
        STEPS * 1_000_000 / (0..20).map(time).min().unwrap_or(1).max(1)
    });
    (ns * per_ms / 1_000_000).max(1)
}
