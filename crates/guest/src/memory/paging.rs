// SPDX-License-Identifier: MIT OR Apache-2.0
//! x86-64 page tables: 4 and 5 levels, pages of 4 KiB, 2 MiB and 1 GiB.
//!
//! A walk reads at most one entry per level, whatever the tables hold.

use super::Physical;
use crate::error::{Error, Result};

const PRESENT: u64 = 1;
/// In an entry of the second or third level: it maps a page.
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Where a kernel's page tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTables {
    /// Guest-physical address of the top level.
    pub root: u64,
    pub five_levels: bool,
    /// Address bits that mean something else (memory encryption).
    pub ignore: u64,
}

impl PageTables {
    /// The guest-physical address of `address`, and how many bytes from there on are in the same
    /// page.
    pub fn walk(&self, physical: &dyn Physical, address: u64) -> Result<(u64, u64)> {
        let unmapped = || Error::NotMapped { address };
        let top = if self.five_levels { 48 } else { 39 };
        // The bits above the highest that is translated repeat it.
        let sign = (address as i64) >> (top + 8);
        if sign != 0 && sign != -1 {
            return Err(unmapped());
        }
        let mut table = self.root;
        let mut shift = top;
        loop {
            let mut entry = [0; 8];
            physical.read(table + ((address >> shift) & 511) * 8, &mut entry)?;
            let entry = u64::from_le_bytes(entry);
            if entry & PRESENT == 0 {
                return Err(unmapped());
            }
            let target = entry & ADDRESS & !self.ignore;
            let large = (shift == 21 || shift == 30) && entry & LARGE != 0;
            if large || shift == 12 {
                let offsets = (1u64 << shift) - 1;
                let within = address & offsets;
                return Ok(((target & !offsets) + within, offsets + 1 - within));
            }
            table = target;
            shift -= 9;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Image;
    use super::*;

    const KERNEL: u64 = 0xffff_ffff_8000_0000;

    /// Tables from page 1 on that map `KERNEL` to 0 in pages of 2 MiB, 1 GiB below that as one
    /// page, and a page of 4 KiB at 0xffff888000000000.
    fn tables(five: bool) -> (Image, PageTables) {
        let mut ram = vec![0u8; 16 * 4096];
        let mut set = |table: u64, index: u64, entry: u64| {
            let at = (table * 4096 + index * 8) as usize;
            ram[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        };
        let root = if five { 9 } else { 1 };
        set(9, 511, (1 << 12) | PRESENT);
        set(1, 511, (2 << 12) | PRESENT);
        set(2, 510, (3 << 12) | PRESENT | (1 << 63));
        set(2, 509, (1 << 30) | PRESENT | LARGE | (1 << 12));
        set(3, 0, PRESENT | LARGE);
        set(3, 1, (1 << 21) | PRESENT | LARGE);
        set(1, 273, (4 << 12) | PRESENT);
        set(4, 0, (5 << 12) | PRESENT);
        set(5, 0, (6 << 12) | PRESENT);
        set(6, 0, (7 << 12) | PRESENT);
        (Image::new(ram), PageTables { root: root << 12, five_levels: five, ignore: 0 })
    }

    #[test]
    fn all_page_sizes() {
        for five in [false, true] {
            let (ram, tables) = tables(five);
            let walk = |address| tables.walk(&ram, address).ok();
            assert_eq!(walk(KERNEL + 0x1234), Some((0x1234, (2 << 20) - 0x1234)));
            assert_eq!(walk(KERNEL + (2 << 20)), Some((2 << 20, 2 << 20)));
            assert_eq!(walk(KERNEL + (4 << 20)), None);
            let below = KERNEL - (1 << 30);
            assert_eq!(
                walk(below + 5),
                Some(((1 << 30) + 5, (1 << 30) - 5)),
                "no PAT bit in the address"
            );
            if !five {
                assert_eq!(walk(0xffff_8880_0000_0fff), Some((0x7fff, 1)));
            }
            assert_eq!(walk(0x0100_0000_0000_0000), None, "not canonical");
        }
    }

    #[test]
    fn a_table_that_is_not_ram_is_an_error() {
        let (ram, tables) = tables(false);
        let wild = PageTables { root: 0xf_ffff_ffff_f000, ..tables };
        assert!(matches!(wild.walk(&ram, KERNEL), Err(Error::NotRam { .. })));
        let wild = PageTables { ignore: 1 << 13, ..tables };
        assert!(wild.walk(&ram, KERNEL).is_err());
    }

    #[test]
    fn tables_that_point_at_themselves_end() {
        let mut ram = vec![0u8; 4096];
        for entry in ram.chunks_exact_mut(8) {
            entry.copy_from_slice(&PRESENT.to_le_bytes());
        }
        let ram = Image::new(ram);
        let tables = PageTables { root: 0, five_levels: true, ignore: 0 };
        assert_eq!(tables.walk(&ram, KERNEL + 0x321).unwrap(), (0x321, 4096 - 0x321));
    }
}
