// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own symbol table.
//!
//! Names are compressed with a table of 256 tokens; addresses are kept in one of three ways, and
//! the kernel does not say in which (`scripts/kallsyms.c`). The one is chosen that gives the
//! symbols in VMCOREINFO their known addresses, so a wrong guess cannot pass.
//!
//! | kernels | addresses |
//! |---|---|
//! | 6.0 to 6.14, SMP | offset >= 0: absolute; negative: from `kallsyms_relative_base`, backwards from -1 |
//! | 6.15 to 7.0, or without SMP | unsigned offset from `kallsyms_relative_base` |
//! | 7.1 on | signed offset from the place where it stands |

use super::Reader;
use super::symbols::{Builder, Symbols};
use super::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
use crate::error::{Error, Result};
use std::collections::HashMap;

/// Symbols of a kernel. Distributions' have 100,000 to 250,000.
const SYMBOLS_MAX: u32 = 1 << 20;

/// Names, bytes in all, each as long as the longer of its forms: it may be made of tokens that
/// stand for nothing. Distributions' have 3 to 7 MB.
const NAMES_MAX: usize = 32 << 20;

/// Longest name with its type (`KSYM_NAME_LEN` is 512).
const NAME_MAX: usize = 2048;

/// The names' stream is read in pieces of this size, as its length is not known.
const PIECE: usize = 64 << 10;

/// Reads the tables that `info` points to.
///
/// # Errors
/// [`Error::Unsupported`] for a kernel before 6.0, whose VMCOREINFO does not name them;
/// [`Error::Corrupt`].
pub fn read(memory: &dyn Reader, info: &VmCoreInfo) -> Result<Symbols> {
    let at = |name: &str| {
        info.symbol(name).ok_or_else(|| Error::Unsupported {
            release: info.release().into(),
            what: format!("VMCOREINFO does not say where {name} is, as Linux 6.0 and later do"),
        })
    };
    let count = number(memory, at("kallsyms_num_syms")?)?;
    if count == 0 || count > SYMBOLS_MAX {
        return Err(corrupt(format!("{count} symbols")));
    }
    let tokens = Tokens::read(memory, at("kallsyms_token_table")?, at("kallsyms_token_index")?)?;
    let mut builder = Builder::default();
    let mut known = Known::new(info);
    names(memory, at("kallsyms_names")?, count, &tokens, |index, kind, name| {
        known.see(index, name);
        builder.push(0, kind, name);
    })?;
    let addresses = Addresses::read(memory, info, count, &known)?;
    builder.relocate(|index, _| addresses.get(index));
    Ok(builder.finish())
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::corrupt("kallsyms", detail)
}

fn number(memory: &dyn Reader, address: u64) -> Result<u32> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// The text for each byte of a compressed name.
struct Tokens {
    table: Vec<u8>,
    /// Start and end.
    spans: Vec<(usize, usize)>,
}

impl Tokens {
    fn read(memory: &dyn Reader, table: u64, index: u64) -> Result<Tokens> {
        let index = memory.bytes(index, 512)?;
        let starts: Vec<usize> =
            index.chunks_exact(2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]]))).collect();
        let last = starts.iter().copied().max().unwrap_or(0);
        // The last token's end is not in the index; what follows the table is still the kernel's.
        let table = memory.bytes(table, last + 256)?;
        let end = |start: usize| Some(start + table.get(start..)?.iter().position(|&b| b == 0)?);
        let span = |&start: &usize| Some((start, end(start)?));
        let spans: Option<Vec<_>> = starts.iter().map(span).collect();
        Ok(Tokens { spans: spans.ok_or_else(|| corrupt("a token without an end"))?, table })
    }

    /// Appends the expansion of `name` to `out`.
    fn expand(&self, name: &[u8], out: &mut Vec<u8>) -> Result<()> {
        for &byte in name {
            let (start, end) = self.spans[usize::from(byte)];
            out.extend_from_slice(&self.table[start..end]);
            if out.len() > NAME_MAX {
                return Err(corrupt("a name without end"));
            }
        }
        Ok(())
    }
}

/// Hands index, type and name of each symbol to `each`.
fn names(
    memory: &dyn Reader,
    start: u64,
    count: u32,
    tokens: &Tokens,
    mut each: impl FnMut(u32, u8, &str),
) -> Result<()> {
    let mut stream = Stream { memory, next: start, bytes: Vec::new(), at: 0 };
    let (mut name, mut total) = (Vec::new(), 0);
    for index in 0..count {
        let mut len = usize::from(stream.take(1)?[0]);
        // Since 6.1, a set top bit announces a second byte.
        if len & 0x80 != 0 {
            len = (len & 0x7f) | usize::from(stream.take(1)?[0]) << 7;
        }
        name.clear();
        tokens.expand(stream.take(len)?, &mut name)?;
        total += name.len().max(len);
        if total > NAMES_MAX {
            return Err(corrupt("more names than any kernel has"));
        }
        let plain =
            std::str::from_utf8(&name).ok().filter(|n| n.bytes().all(|b| b.is_ascii_graphic()));
        match plain.and_then(|n| Some((n.as_bytes().first()?, n.get(1..)?))) {
            Some((&kind, name)) => each(index, kind, name),
            None => return Err(corrupt(format!("symbol {index} has no proper name"))),
        }
    }
    Ok(())
}

/// The compressed names, read as they are needed.
struct Stream<'a> {
    memory: &'a dyn Reader,
    next: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl Stream<'_> {
    /// The next `len` bytes, at most a piece.
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        if len > self.bytes.len() - self.at {
            self.bytes.drain(..self.at);
            self.at = 0;
            let had = self.bytes.len();
            // A whole piece, unless the memory behind ends before.
            let mut piece = PIECE;
            loop {
                self.bytes.resize(had + piece, 0);
                match self.memory.read(self.next, &mut self.bytes[had..]) {
                    Ok(()) => break,
                    Err(_) if piece > 1 && had + piece / 2 >= len => piece /= 2,
                    Err(e) => return Err(e),
                }
            }
            self.next = self.next.wrapping_add(piece as u64);
        }
        let part =
            self.bytes.get(self.at..self.at + len).ok_or_else(|| corrupt("a name without end"))?;
        self.at += len;
        Ok(part)
    }
}

/// Symbols whose addresses VMCOREINFO gives, and where they are in the table.
struct Known<'a> {
    addresses: HashMap<&'a str, u64>,
    seen: Vec<(usize, u64)>,
}

impl<'a> Known<'a> {
    fn new(info: &'a VmCoreInfo) -> Known<'a> {
        // `mem_section` is given by where it points to.
        let image = info.symbols().filter(|&(_, address)| address >= KERNEL_BASE);
        Known { addresses: image.collect(), seen: Vec::new() }
    }

    fn see(&mut self, index: u32, name: &str) {
        // Each once, the first: a module may not repeat them, but a static symbol can.
        if let Some(address) = self.addresses.remove(name) {
            self.seen.push((index as usize, address));
        }
    }
}

/// The addresses, as they are kept.
struct Addresses {
    bytes: Vec<u8>,
    layout: Layout,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    AbsolutePercpu { base: u64 },
    Relative { base: u64 },
    PlaceRelative { table: u64 },
}

impl Addresses {
    /// Reads the table and chooses the layout that agrees best with `known`.
    fn read(
        memory: &dyn Reader,
        info: &VmCoreInfo,
        count: u32,
        known: &Known,
    ) -> Result<Addresses> {
        let table =
            info.symbol("kallsyms_offsets").ok_or_else(|| corrupt("no table of offsets"))?;
        let mut layouts = vec![Layout::PlaceRelative { table }];
        if let Some(at) = info.symbol("kallsyms_relative_base") {
            let base: [u8; 8] = memory.bytes(at, 8)?.try_into().unwrap_or_default();
            let base = u64::from_le_bytes(base);
            layouts = vec![Layout::AbsolutePercpu { base }, Layout::Relative { base }];
        }
        let bytes = memory.bytes(table, 4 * count as usize)?;
        let mut addresses = Addresses { bytes, layout: Layout::PlaceRelative { table } };
        let mut right = |layout: Layout| {
            addresses.layout = layout;
            known.seen.iter().filter(|&&(index, address)| addresses.get(index) == address).count()
        };
        let scores: Vec<(usize, Layout)> = layouts.into_iter().map(|l| (right(l), l)).collect();
        let Some(&(score, layout)) = scores.iter().max_by_key(|(score, _)| *score) else {
            return Err(corrupt("no layout"));
        };
        let all = known.seen.len();
        if all == 0 || score < all {
            return Err(corrupt(format!(
                "{score} of {all} addresses that VMCOREINFO gives too agree"
            )));
        }
        addresses.layout = layout;
        Ok(addresses)
    }

    fn get(&self, index: usize) -> u64 {
        let bytes = self.bytes.get(4 * index..4 * index + 4);
        let offset = u32::from_le_bytes(bytes.and_then(|b| b.try_into().ok()).unwrap_or_default());
        match self.layout {
            Layout::AbsolutePercpu { base } => match offset as i32 {
                offset if offset >= 0 => offset as u64,
                offset => base.wrapping_sub(1).wrapping_sub(i64::from(offset) as u64),
            },
            Layout::Relative { base } => base.wrapping_add(offset.into()),
            Layout::PlaceRelative { table } => {
                let place = table.wrapping_add(4 * index as u64);
                place.wrapping_add(i64::from(offset as i32) as u64)
            }
        }
    }
}
