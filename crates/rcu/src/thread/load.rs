// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number of callbacks and their size, in one word.

/// Callbacks in the low half, units of 16 bytes in the high half. A sum is one addition, and may
/// wrap: a difference of two sums is right as long as it fits itself, that is, below 2^32 callbacks
/// and 64 GiB. Hence the caps end at half of that ([`Load::HIGHEST_CAP`]).
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Load(u64);

impl Load {
    /// The most units that one callback may announce: 16 of them fit.
    #[cfg(not(loom))]
    pub(crate) const MOST_UNITS: u32 = (1 << 28) - 1;

    /// The highest cap: bytes, callbacks. Beyond it there is room for what exceeds it a little.
    #[cfg(not(loom))]
    pub(crate) const HIGHEST_CAP: (u64, u64) = (1 << 35, 1 << 31);

    pub(crate) const NONE: Load = Load(0);

    /// A callback of that size.
    pub(crate) fn one(units: u32) -> Load {
        Load((units as u64) << 32 | 1)
    }

    /// `n` callbacks of `units` each; the product is below 2^32.
    pub(crate) fn many(units: u32, n: u32) -> Load {
        let product = units as u64 * n as u64;
        debug_assert!(product <= u32::MAX as u64);
        Load(product << 32 | n as u64)
    }

    pub(crate) fn callbacks(self) -> u64 {
        self.0 & u32::MAX as u64
    }

    pub(crate) fn units(self) -> u64 {
        self.0 >> 32
    }

    pub(crate) fn bytes(self) -> u64 {
        self.units() * 16
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Load {
        Load(bits)
    }

    #[must_use]
    pub(crate) fn add(self, other: Load) -> Load {
        Load(self.0.wrapping_add(other.0))
    }

    /// `self` without `other`, which is a part of it.
    #[must_use]
    pub(crate) fn less(self, other: Load) -> Load {
        Load(self.0.wrapping_sub(other.0))
    }

    /// `self` without `other`, which is a part of it, or was a moment ago: then nothing is left.
    #[cfg(not(loom))]
    #[must_use]
    pub(crate) fn less_or_none(self, other: Load) -> Load {
        let callbacks = self.callbacks().saturating_sub(other.callbacks());
        Load(self.units().saturating_sub(other.units()) << 32 | callbacks)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sixteen_of_the_largest_fit() {
        let load = Load::many(Load::MOST_UNITS, 16);
        assert_eq!((load.callbacks(), load.units()), (16, 16 * Load::MOST_UNITS as u64));
        let one = Load::one(Load::MOST_UNITS);
        assert_eq!((0..16).fold(Load::NONE, |sum, _| sum.add(one)), load);
    }
}
