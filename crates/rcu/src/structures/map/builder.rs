// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of a map.

use super::hash_map::Map;
use super::table::STRIPES;
use crate::structures::handle::{Global, Handle};
use foldhash::fast::RandomState;
use std::hash::BuildHasher;

/// Settings of a [`Map`].
#[derive(Clone, Debug)]
pub struct Builder<D = Global, S = RandomState> {
    chains: usize,
    load: usize,
    hasher: S,
    domain: D,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder { chains: STRIPES, load: 1, hasher: RandomState::default(), domain: Global }
    }
}

impl<D, S> Builder<D, S> {
    /// Chains at first: the next power of two, at least 16. Default: 16.
    pub fn chains(mut self, chains: usize) -> Self {
        self.chains = chains;
        self
    }

    /// Mean number of items in a chain beyond which the table grows. Default: 1. `usize::MAX`:
    /// it does not grow.
    pub fn load(mut self, load: usize) -> Self {
        self.load = load.max(1);
        self
    }

    /// The hash function. Default: foldhash's fast one with a random seed, which keeps honest
    /// keys apart, but not an attacker's who can measure; std's `RandomState` does.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<D, T> {
        Builder { chains: self.chains, load: self.load, hasher, domain: self.domain }
    }

    /// The domain. Default: [`Global`].
    pub fn domain<T: Handle>(self, domain: T) -> Builder<T, S> {
        Builder { chains: self.chains, load: self.load, hasher: self.hasher, domain }
    }

    /// An empty map.
    pub fn build<K, V>(self) -> Map<K, V, D, S> {
        Map::with(self.chains, self.load, self.hasher, self.domain)
    }
}
