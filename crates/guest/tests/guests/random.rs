// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damage, the same in every run.

pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0.usize(0..limit.max(1))
    }

    /// Damages `bytes` in one of the ways that find bugs.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            match self.below(7) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes[at] = [0, 0x7f, 0x80, 0xff][self.below(4)],
                3 => bytes.truncate(at),
                4 => {
                    let end = (at + self.below(32)).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
                5 => {
                    let (from, len) = (self.below(bytes.len()), self.below(16));
                    let part: Vec<u8> = bytes[from..].iter().copied().take(len).collect();
                    for (to, byte) in bytes[at..].iter_mut().zip(part) {
                        *to = byte;
                    }
                }
                _ => {
                    let value =
                        [0u32, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 0xffff][self.below(6)];
                    for (to, byte) in bytes[at & !3..].iter_mut().zip(value.to_le_bytes()) {
                        *to = byte;
                    }
                }
            }
        }
    }
}
