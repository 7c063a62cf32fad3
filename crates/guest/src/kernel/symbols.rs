// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table of symbols: names to addresses and back.

use crate::error::{Error, Result};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A symbol of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Kernel address (before Linux 6.15, an offset for variables of which each CPU has its own).
    pub address: u64,
    /// As `nm` prints it: `T` and `t` for functions, capital for global.
    pub kind: char,
    pub name: &'a str,
}

/// An address, in terms of the symbol it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub name: String,
    /// From the symbol's address, bytes.
    pub offset: u64,
    /// `None` for the kernel itself.
    pub module: Option<String>,
}

impl std::fmt::Display for Resolved {
    /// `name+0x1f [module]`.
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}", self.name)?;
        if self.offset > 0 {
            write!(f, "+{:#x}", self.offset)?;
        }
        match &self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    name: (u32, u16),
    kind: u8,
}

/// Symbols in the order of the kernel's own table.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    entries: Vec<Entry>,
    names: String,
    by_address: Vec<u32>,
    /// Hash of the name and index, sorted: much faster to make than names are to sort, and names
    /// are looked up dozens of times only.
    by_name: Vec<(u64, u32)>,
}

/// Collects symbols; names beyond 4 GiB in all, or longer than 64 KiB, are not taken.
#[derive(Default)]
pub struct Builder(Symbols);

impl Builder {
    pub fn push(&mut self, address: u64, kind: u8, name: &str) {
        let table = &mut self.0;
        let (Ok(start), Ok(len)) = (u32::try_from(table.names.len()), u16::try_from(name.len()))
        else {
            return;
        };
        table.names.push_str(name);
        table.entries.push(Entry { address, name: (start, len), kind });
    }

    /// Gives every symbol its address: `address(index, old)`.
    pub fn relocate(&mut self, mut address: impl FnMut(usize, u64) -> u64) {
        for (index, entry) in self.0.entries.iter_mut().enumerate() {
            entry.address = address(index, entry.address);
        }
    }

    pub fn finish(self) -> Symbols {
        let mut table = self.0;
        // The symbols are kept as long as their guest.
        table.entries.shrink_to_fit();
        table.names.shrink_to_fit();
        let mut by_address: Vec<u32> = (0..table.entries.len() as u32).collect();
        by_address.sort_by_key(|&i| table.entries[i as usize].address);
        let hashed = |(entry, index)| (hash(table.name_of(entry).as_bytes()), index);
        let mut by_name: Vec<(u64, u32)> = table.entries.iter().zip(0..).map(hashed).collect();
        by_name.sort_unstable();
        table.by_address = by_address;
        table.by_name = by_name;
        table
    }
}

impl Symbols {
    /// The address of `name`; of the first in the table if there are several.
    ///
    /// # Errors
    /// [`Error::NoSymbol`].
    pub fn address(&self, name: &str) -> Result<u64> {
        self.get(name).map(|s| s.address).ok_or_else(|| Error::NoSymbol { name: name.into() })
    }

    /// The first symbol called `name`.
    pub fn get(&self, name: &str) -> Option<Symbol<'_>> {
        let wanted = hash(name.as_bytes());
        let at = self.by_name.partition_point(|&(hash, _)| hash < wanted);
        let same = self.by_name.get(at..)?.iter().take_while(|(hash, _)| *hash == wanted);
        same.map(|&(_, index)| self.symbol(index)).find(|symbol| symbol.name == name)
    }

    /// The last symbol at or below `address`, of several at one address the first. It may lie in a
    /// wholly different part of memory: the caller knows the ranges that hold code
    /// ([`crate::Guest::resolve`] does).
    pub fn resolve(&self, address: u64) -> Option<Resolved> {
        let behind =
            self.by_address.partition_point(|&i| self.entries[i as usize].address <= address);
        let last = self.entries[*self.by_address.get(behind.checked_sub(1)?)? as usize].address;
        let first = self.by_address.partition_point(|&i| self.entries[i as usize].address < last);
        let symbol = self.symbol(*self.by_address.get(first)?);
        Some(Resolved { name: symbol.name.into(), offset: address - symbol.address, module: None })
    }

    /// The address of the first symbol behind those at `address`.
    pub fn after(&self, address: u64) -> Option<u64> {
        let behind =
            self.by_address.partition_point(|&i| self.entries[i as usize].address <= address);
        self.by_address.get(behind).map(|&i| self.entries[i as usize].address)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory that it takes, bytes.
    pub fn bytes(&self) -> usize {
        self.names.capacity()
            + size_of_val(&self.entries[..])
            + size_of_val(&self.by_address[..])
            + size_of_val(&self.by_name[..])
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// In the order of the kernel's table, that of `/proc/kallsyms`.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        (0..self.entries.len() as u32).map(|i| self.symbol(i))
    }

    fn symbol(&self, index: u32) -> Symbol<'_> {
        let entry = &self.entries[index as usize];
        Symbol { address: entry.address, kind: entry.kind.into(), name: self.name_of(entry) }
    }

    fn name_of(&self, entry: &Entry) -> &str {
        let (start, len) = (entry.name.0 as usize, entry.name.1 as usize);
        &self.names[start..start + len]
    }
}

pub(super) fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Symbols {
        let mut builder = Builder::default();
        for (address, name) in [(0x1000, "b"), (0x1000, "alias"), (0x2000, "a"), (0x1800, "b")] {
            builder.push(address, b't', name);
        }
        builder.finish()
    }

    #[test]
    fn names_to_addresses_and_back() {
        let table = table();
        assert_eq!((table.address("a").unwrap(), table.address("b").unwrap()), (0x2000, 0x1000));
        assert!(matches!(table.address("c"), Err(Error::NoSymbol { .. })));
        let resolve = |address| table.resolve(address).map(|r| r.to_string());
        assert_eq!(resolve(0x1010).as_deref(), Some("b+0x10"));
        assert_eq!(resolve(0x1fff).as_deref(), Some("b+0x7ff"));
        assert_eq!(resolve(0x2000).as_deref(), Some("a"));
        assert_eq!(resolve(0xfff), None);
        assert_eq!((table.after(0x1000), table.after(0x2000)), (Some(0x1800), None));
        assert_eq!(table.iter().map(|s| s.name).collect::<Vec<_>>(), ["b", "alias", "a", "b"]);
        assert!(Symbols::default().resolve(5).is_none() && Symbols::default().is_empty());
        let named = |name: &str| {
            let mut builder = Builder::default();
            builder.push(0, b't', name);
            builder.finish().bytes()
        };
        assert_eq!((named(&"n".repeat(5000)) - named("n"), Symbols::default().bytes()), (4999, 0));
    }
}
