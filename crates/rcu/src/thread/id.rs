// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ids of domains: an index, which is used again, and a number, which is not.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many domains may exist at a time.
pub const MAX_DOMAINS: usize = 1024;

/// Tells domains apart, those that are gone included: no two have the same in the life of a
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainId(u64);

impl DomainId {
    /// The default domain, known when the program is compiled.
    pub(crate) const GLOBAL: DomainId = DomainId(0);

    /// Bits of the index, which is used again when a domain is gone. The rest counts domains.
    const INDEX: u32 = u16::BITS;

    /// The id of a new domain with that index. The default domain's is always the same.
    pub(crate) fn new(index: usize) -> DomainId {
        static DOMAINS: AtomicU64 = AtomicU64::new(0);
        if index == 0 {
            return DomainId::GLOBAL;
        }
        let number = DOMAINS.fetch_add(1, Ordering::Relaxed) + 1;
        DomainId(number << DomainId::INDEX | index as u64)
    }

    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as u16 as usize
    }
}

const _: () = assert!(MAX_DOMAINS <= 1 << DomainId::INDEX);

impl std::fmt::Display for DomainId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 >> DomainId::INDEX {
            0 => f.write_str("the default domain"),
            number => write!(f, "domain {number}"),
        }
    }
}
