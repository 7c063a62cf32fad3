// SPDX-License-Identifier: MIT OR Apache-2.0
//! VMCOREINFO: a page of text in which a Linux kernel says, for crash dumps, where things are.
//!
//! Lines of `KEY=value`, in a page of its own (`crash_save_vmcoreinfo_init`), so found by its first
//! line. A page that looks like it is only a candidate: it may be left from an earlier boot, be a
//! copy, or be made up. [`VmCoreInfo::tables`] gives what to check it with.

use crate::error::{Error, Result};
use crate::memory::paging::PageTables;
use crate::memory::printable;
use std::collections::BTreeMap;

/// The first bytes of the page.
pub const MARK: &[u8; 10] = b"OSRELEASE=";

/// Its length, bytes.
pub const LEN: usize = 4096;

/// First address of the kernel's image without KASLR (`__START_KERNEL_map`).
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// Parsed VMCOREINFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmCoreInfo {
    release: String,
    pairs: BTreeMap<String, String>,
}

impl VmCoreInfo {
    /// Parses a page.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it does not begin as one, has no end, or is no text.
    pub fn parse(page: &[u8]) -> Result<VmCoreInfo> {
        let corrupt = |detail: &str| Error::corrupt("VMCOREINFO", detail);
        let page = page.get(..LEN).unwrap_or(page);
        let end = page.iter().position(|&b| b == 0).unwrap_or(page.len());
        let text = std::str::from_utf8(&page[..end]).map_err(|_| corrupt("it is no text"))?;
        if !page.starts_with(MARK) {
            return Err(corrupt("it does not begin with OSRELEASE="));
        }
        let pair = |line: &str| line.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        let pairs: BTreeMap<String, String> = text.lines().filter_map(pair).collect();
        let release = printable(pairs.get("OSRELEASE").map(String::as_bytes).unwrap_or_default());
        if release.is_empty() || release.len() > 64 {
            return Err(corrupt("it names no release"));
        }
        Ok(VmCoreInfo { release, pairs })
    }

    /// `uname -r`.
    pub fn release(&self) -> &str {
        &self.release
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.get(key).map(String::as_str)
    }

    /// `SYMBOL(name)`: a kernel address.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.get(&format!("SYMBOL({name})"))?, 16).ok()
    }

    /// All `SYMBOL(name)`.
    pub fn symbols(&self) -> impl Iterator<Item = (&str, u64)> {
        self.pairs.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix("SYMBOL(")?.strip_suffix(')')?;
            Some((name, u64::from_str_radix(value, 16).ok()?))
        })
    }

    /// `NUMBER(name)`, as its 64 bits.
    pub fn number(&self, name: &str) -> Option<u64> {
        let text = self.get(&format!("NUMBER({name})"))?;
        text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(|n| n as u64))
    }

    /// `phys_base`: the guest-physical address of [`KERNEL_BASE`]; wraps.
    pub fn phys_base(&self) -> Result<u64> {
        self.number("phys_base").ok_or_else(|| Error::Unsupported {
            release: self.release.clone(),
            what: "VMCOREINFO has no phys_base: not an x86-64 kernel".into(),
        })
    }

    /// Bits of an address in a page table that mean encryption.
    pub fn encryption_mask(&self) -> u64 {
        self.number("sme_mask").unwrap_or(0)
    }

    /// The kernel address of the top-level page table.
    pub fn page_table(&self) -> Result<u64> {
        let root = self.symbol("swapper_pg_dir").or_else(|| self.symbol("init_top_pgt"));
        root.filter(|&address| address >= KERNEL_BASE)
            .ok_or_else(|| Error::corrupt("VMCOREINFO", "no swapper_pg_dir"))
    }

    /// The kernel's page tables, as this page has them.
    pub fn tables(&self) -> Result<PageTables> {
        let root = (self.page_table()? - KERNEL_BASE).wrapping_add(self.phys_base()?);
        if root & 0xfff != 0 {
            return Err(Error::corrupt("VMCOREINFO", format!("page table at {root:#x}")));
        }
        Ok(PageTables {
            root,
            five_levels: self.number("pgtable_l5_enabled") == Some(1),
            ignore: self.encryption_mask(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "OSRELEASE=6.12.1-x\nBUILD-ID=ab12\nSYMBOL(swapper_pg_dir)=ffffffffa2e10000\nSYMBOL(bad)=zz\n\
                        NUMBER(phys_base)=-2097152\nNUMBER(pgtable_l5_enabled)=1\nKERNELOFFSET=20e00000\nNUMBER(sme_mask)=0\n";

    #[test]
    fn reads_what_a_kernel_says() {
        let mut page = TEXT.as_bytes().to_vec();
        page.resize(LEN, 0);
        let info = VmCoreInfo::parse(&page).unwrap();
        assert_eq!(info.release(), "6.12.1-x");
        assert_eq!(info.symbols().collect::<Vec<_>>(), [("swapper_pg_dir", 0xffff_ffff_a2e1_0000)]);
        let tables = info.tables().unwrap();
        assert_eq!((tables.root, tables.five_levels), (0x22e1_0000 - 0x20_0000, true));
    }

    #[test]
    fn other_pages_are_refused() {
        for text in ["", "OSRELEASE=", "OSRELEASE=\n", "osrelease=6", "OSRELEASE=6\u{e9}"] {
            let parsed = VmCoreInfo::parse(text.as_bytes());
            assert!(parsed.is_err() || parsed.unwrap().tables().is_err(), "{text}");
        }
        assert!(VmCoreInfo::parse(b"OSRELEASE=\xff\xfe").is_err());
        let arm =
            VmCoreInfo::parse(b"OSRELEASE=6.1\nSYMBOL(swapper_pg_dir)=ffff800008000000\n").unwrap();
        assert!(arm.tables().is_err());
        assert!(
            VmCoreInfo::parse(TEXT.replace("e10000", "e10001").as_bytes())
                .unwrap()
                .tables()
                .is_err()
        );
    }
}
