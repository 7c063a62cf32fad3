// SPDX-License-Identifier: MIT OR Apache-2.0
//! SplitMix64 (Steele, Lea, Flood, 2014): small, seedable, the same everywhere.

pub struct Rng(u64);

impl Rng {
    /// A generator of its own for each `stream` of one seed.
    pub fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(seed);
        let base = rng.next();
        Rng(base ^ Rng(stream).next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..=high` (`low` if the range is empty); the bias of the multiplication is
    /// below 2^-32 for ranges used here.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high.saturating_sub(low)) + 1;
        low + ((u128::from(self.next()) * span) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_splitmix64() {
        let mut rng = Rng(1234567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!([rng.next(), rng.next(), rng.next()], expected);
    }

    #[test]
    fn ranges_are_hit_whole_and_evenly() {
        let mut rng = Rng::new(1, 2);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.within(10, 16) as usize - 10] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
        assert_eq!(rng.within(5, 5), 5);
        assert_eq!(rng.within(5, 1), 5);
        let _ = rng.within(0, u64::MAX);
    }

    #[test]
    fn streams_differ() {
        assert_ne!(Rng::new(1, 0).next(), Rng::new(1, 1).next());
        assert_eq!(Rng::new(1, 3).next(), Rng::new(1, 3).next());
    }
}
