// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's free memory by block size, which shows how fragmented it is.
//!
//! Each zone of each node keeps its free pages in blocks of 2^order pages, and counts them. The
//! counts are read without the zone's lock, so they may be off by the blocks in motion.

use crate::error::{Error, Result};
use crate::kernel::Kernel;

/// Nodes, zones per node and orders that are read.
const NODES_MAX: u64 = 1024;
const ZONES_MAX: u64 = 16;
const ORDERS_MAX: u64 = 32;

/// Free memory of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub node: u32,
    /// `DMA32`, `Normal`.
    pub name: String,
    /// Pages that the zone has.
    pub pages: u64,
    /// Free blocks of 2^index pages.
    pub free: Vec<u64>,
}

impl Zone {
    /// Free pages.
    pub fn free_pages(&self) -> u64 {
        let pages = self
            .free
            .iter()
            .enumerate()
            .map(|(order, &blocks)| blocks.saturating_mul(1 << order.min(63)));
        pages.fold(0, u64::saturating_add)
    }

    /// The kernel's unusable free space index for blocks of 2^`order` pages: the share of free
    /// memory in smaller blocks, 0 to 1.
    pub fn unusable(&self, order: usize) -> f64 {
        let free = self.free_pages();
        if free == 0 {
            return 1.0;
        }
        let blocks = self.free.iter().enumerate().skip(order);
        let usable =
            blocks.map(|(o, &n)| n.saturating_mul(1 << o.min(63))).fold(0, u64::saturating_add);
        free.saturating_sub(usable) as f64 / free as f64
    }
}

/// Free memory of all zones that have pages.
pub(crate) fn free_lists(kernel: &Kernel) -> Result<Vec<Zone>> {
    let (types, memory) = (kernel.types()?, &kernel.memory);
    let zones = types.field("pglist_data", "node_zones")?;
    let zone_size = types.size_of("zone")?;
    let offset = |name: &str| types.offset_of("zone", name);
    let (name, pages, area) =
        (offset("name")?, offset("present_pages")?, types.field("zone", "free_area")?);
    let area_size = types.size_of("free_area")?;
    let count = types.offset_of("free_area", "nr_free")?;
    let mut found = Vec::new();
    for (number, node) in nodes(kernel)? {
        for index in 0..zones.elements.min(ZONES_MAX) {
            let zone = node.wrapping_add(zones.offset).wrapping_add(index * zone_size);
            let present = memory.u64(zone.wrapping_add(pages))?;
            if present == 0 {
                continue;
            }
            let blocks = |order: u64| {
                let at = zone.wrapping_add(area.offset).wrapping_add(order * area_size);
                memory.u64(at.wrapping_add(count))
            };
            let orders = area.elements.min(ORDERS_MAX);
            found.push(Zone {
                node: number,
                name: memory.string(memory.u64(zone.wrapping_add(name))?, 16)?,
                pages: present,
                free: (0..orders).map(blocks).collect::<Result<_>>()?,
            });
        }
    }
    Ok(found)
}

/// Number and kernel address of each `pglist_data`.
fn nodes(kernel: &Kernel) -> Result<Vec<(u32, u64)>> {
    if let Some(only) = kernel.symbols.get("contig_page_data") {
        return Ok(vec![(0, only.address)]);
    }
    let table = kernel.symbols.address("node_data")?;
    let count = match kernel.symbols.get("nr_node_ids") {
        Some(at) => u64::from(kernel.memory.u32(at.address)?),
        None => 1,
    };
    if count == 0 || count > NODES_MAX {
        return Err(Error::corrupt("nr_node_ids", format!("{count} nodes")));
    }
    let mut nodes = Vec::new();
    for number in 0..count {
        let node = kernel.memory.u64(table.wrapping_add(8 * number))?;
        if node != 0 {
            nodes.push((number as u32, node));
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_the_kernels_index() {
        let zone =
            |free: &[u64]| Zone { node: 0, name: "Normal".into(), pages: 1000, free: free.into() };
        // 4 + 4 + 8 pages.
        let mixed = zone(&[4, 2, 2]);
        assert_eq!(mixed.free_pages(), 16);
        assert_eq!((mixed.unusable(0), mixed.unusable(1), mixed.unusable(2)), (0.0, 0.25, 0.5));
        assert_eq!(mixed.unusable(9), 1.0);
        assert_eq!(zone(&[]).unusable(0), 1.0);
        assert_eq!(zone(&[u64::MAX; 40]).free_pages(), u64::MAX);
    }
}
