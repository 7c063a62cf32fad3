// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a running kernel tells about itself: VMCOREINFO, symbols, types.
//!
//! All of it comes from the guest's memory and may be damaged or made up. Parsers take bytes, allocate no more than a fixed multiple of what they
//! were given, follow no chain for longer than the table it is in, and have fuzz tests.

pub mod btf;
pub mod kallsyms;
pub mod symbols;
pub mod types;
pub mod vmcoreinfo;

use crate::error::Result;
use crate::memory::Memory;

/// Kernel-virtual memory to parse from.
pub trait Reader {
    /// Fills `buffer` from the kernel address `address` on.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()>;

    /// `len` bytes. The caller bounds `len`.
    fn bytes(&self, address: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(address, &mut bytes)?;
        Ok(bytes)
    }
}

impl Reader for Memory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_virtual(address, buffer)
    }
}
