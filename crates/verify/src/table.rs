// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jump tables: the targets of an indirect jump whose index has been compared with a constant.

use crate::code::Code;
use crate::image::Image;

/// No lookup has larger tables.
pub(crate) const LARGEST: u64 = 4096;

/// The kind of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// 32-bit distances from the table (position-independent code).
    Distance,
    /// 64-bit addresses.
    Address,
}

/// Indices of the instructions that entries `0..=last` lead to, or what is wrong.
pub(crate) fn targets(
    image: &Image<'_>,
    code: &Code,
    table: u64,
    kind: Kind,
    last: u64,
) -> Result<Vec<usize>, String> {
    if last >= LARGEST {
        return Err(String::from(
            "the index into its table is not bounded by a comparison: build with -fno-jump-tables",
        ));
    }
    let width = if kind == Kind::Distance { 4 } else { 8 };
    let Some(bytes) = image.constant(table, (last + 1) * width) else {
        return Err(format!("its table at {table:#x} is not constant data of this file"));
    };
    let mut targets = Vec::new();
    for entry in bytes.chunks_exact(width as usize) {
        let target = match kind {
            Kind::Distance => table
                .wrapping_add_signed(i32::from_le_bytes(entry.try_into().expect("4 bytes")).into()),
            Kind::Address => u64::from_le_bytes(entry.try_into().expect("8 bytes")),
        };
        match code.index(target).filter(|_| image.contains(target)) {
            Some(index) => targets.push(index),
            None => return Err(format!("its table leads to {}", image.name(target))),
        }
    }
    targets.sort_unstable();
    targets.dedup();
    Ok(targets)
}
