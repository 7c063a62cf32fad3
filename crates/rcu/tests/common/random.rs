// SPDX-License-Identifier: MIT OR Apache-2.0

use std::hash::{BuildHasher, RandomState};

/// Numbers that `REPRIEVE_SEED` repeats.
pub struct Random(u64);

impl Random {
    pub fn new() -> Random {
        let seed = std::env::var("REPRIEVE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0) | 1);
        println!("REPRIEVE_SEED={seed}");
        Random(seed)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
