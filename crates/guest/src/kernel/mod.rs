// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running kernel's description of itself: VMCOREINFO, symbols, types. `Kernel` holds them
//! together with the memory that they describe.
//!
//! All of it comes from the guest's memory and may be damaged or made up. Parsers take bytes,
//! allocate no more than a fixed multiple of what they were given, follow no chain for longer than
//! the table it is in, and have fuzz tests.

pub mod btf;
pub mod kallsyms;
pub mod symbols;
pub mod types;
pub mod vmcoreinfo;

use crate::error::{Error, Result};
use crate::memory::Memory;
use std::ops::Range;
use symbols::{Resolved, Symbols};
use types::Types;
use vmcoreinfo::{KERNEL_BASE, VmCoreInfo};

/// Largest image of a kernel (`KERNEL_IMAGE_SIZE`).
const IMAGE_MAX: u64 = 1 << 30;

/// The kernel of one boot.
pub(crate) struct Kernel {
    pub memory: Memory,
    pub info: VmCoreInfo,
    pub symbols: Symbols,
    pub types: Types,
    /// Kernel addresses of the kernel's image.
    pub image: Range<u64>,
}

impl Kernel {
    /// # Errors
    /// [`Error::Corrupt`] if the symbols give an impossible place for the image.
    pub fn new(memory: Memory, info: VmCoreInfo, symbols: Symbols, types: Types) -> Result<Kernel> {
        let start =
            symbols.get("_text").or(symbols.get("_stext")).map_or(KERNEL_BASE, |s| s.address);
        let end = symbols.get("_end").map_or(start, |s| s.address);
        if start < KERNEL_BASE || end < start || end - start > IMAGE_MAX {
            return Err(Error::corrupt("kernel image", format!("{start:#x} to {end:#x}")));
        }
        Ok(Kernel { memory, info, symbols, types, image: start..end })
    }

    /// The function or variable at an address in the kernel's image.
    pub fn resolve(&self, address: u64) -> Option<Resolved> {
        self.image.contains(&address).then(|| self.symbols.resolve(address))?
    }
}

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
