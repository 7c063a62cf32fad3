// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash function of every map, in Rust and in C (`c/node.h`), so that the maps are compared and
//! not their hash functions: one multiplication, and its upper half onto the lower.

use std::hash::{BuildHasher, Hasher};

/// Makes [`Mix`].
#[derive(Clone, Copy, Default)]
pub struct Mixing;

impl BuildHasher for Mixing {
    type Hasher = Mix;

    #[inline(always)]
    fn build_hasher(&self) -> Mix {
        Mix(0)
    }
}

/// For keys of 64 bits.
pub struct Mix(u64);

impl Hasher for Mix {
    #[inline(always)]
    fn write_u64(&mut self, key: u64) {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = hash ^ hash >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}
