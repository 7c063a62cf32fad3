// SPDX-License-Identifier: MIT OR Apache-2.0
//! External fragmentation: the kernel's unusable free space index.
//!
//! For each zone and page order, the share of the free memory that lies in blocks too small for an
//! allocation of that order: 0 when all of it could be used, 1 when none could. The kernel shows it
//! in debugfs. A guest's value per order is the mean over the zones, weighted by their free pages.

use std::fs;

const BUDDYINFO: &str = "/proc/buddyinfo";
const INDEX: &str = "/sys/kernel/debug/extfrag/unusable_index";

/// A zone and one value per order.
#[derive(Clone, Debug, PartialEq)]
struct Zone<T> {
    node: u32,
    name: String,
    orders: Vec<T>,
}

/// The index by order, 0 to 1; `None` if the kernel shows nothing usable.
pub fn read() -> Option<Vec<f64>> {
    let buddy = parse(&fs::read_to_string(BUDDYINFO).ok()?)?;
    Some(weighted(&buddy, &parse(&fs::read_to_string(INDEX).ok()?)?))
}

/// Lines such as `Node 0, zone    DMA32     65      4      0`.
fn parse<T: std::str::FromStr>(text: &str) -> Option<Vec<Zone<T>>> {
    text.lines().filter(|l| !l.trim().is_empty()).map(parse_line).collect()
}

fn parse_line<T: std::str::FromStr>(line: &str) -> Option<Zone<T>> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(',')?;
    let mut words = rest.split_whitespace();
    if words.next()? != "zone" {
        return None;
    }
    let name = words.next()?.to_string();
    let orders: Option<Vec<T>> = words.map(|w| w.parse().ok()).collect();
    // No kernel has so many orders; page counts are shifted by them.
    let orders = orders.filter(|o| (1..=32).contains(&o.len()))?;
    Some(Zone { node: node.trim().parse().ok()?, name, orders })
}

fn free_pages(zone: &Zone<u32>) -> u64 {
    zone.orders.iter().enumerate().map(|(order, blocks)| u64::from(*blocks) << order).sum()
}

fn weighted(buddy: &[Zone<u32>], index: &[Zone<f64>]) -> Vec<f64> {
    let count = index.iter().map(|z| z.orders.len()).max().unwrap_or(0);
    let mut sums = vec![(0.0, 0.0); count];
    for zone in index {
        let same = |z: &&Zone<u32>| z.node == zone.node && z.name == zone.name;
        let weight = buddy.iter().find(same).map_or(0, free_pages) as f64;
        for (sum, value) in sums.iter_mut().zip(&zone.orders) {
            sum.0 += value * weight;
            sum.1 += weight;
        }
    }
    sums.into_iter().map(|(sum, weight)| if weight > 0.0 { sum / weight } else { 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_stock_guests_are_understood() {
        for (buddyinfo, index) in [
            (include_str!("testdata/6.1.buddyinfo"), include_str!("testdata/6.1.unusable_index")),
            (include_str!("testdata/6.12.buddyinfo"), include_str!("testdata/6.12.unusable_index")),
            (include_str!("testdata/7.3.buddyinfo"), include_str!("testdata/7.3.unusable_index")),
        ] {
            let (buddy, index) = (parse(buddyinfo).unwrap(), parse(index).unwrap());
            assert_eq!(index.len(), buddy.len());
            let weighted = weighted(&buddy, &index);
            assert!(weighted.len() > 9 && weighted[0] == 0.0 && weighted.is_sorted());
        }
    }

    #[test]
    fn zones_count_by_their_free_pages() {
        let zones = "Node 0, zone A 3 0 0\nNode 0, zone B 0 0 3\nNode 1, zone A 0 0 0\n";
        let index = "Node 0, zone A 0 1 1\nNode 0, zone B 0 0 0\nNode 1, zone A 1 1 1\n";
        let index: Vec<Zone<f64>> = parse(index).unwrap();
        assert_eq!(weighted(&parse(zones).unwrap(), &index), [0.0, 3.0 / 15.0, 3.0 / 15.0]);
        assert!(weighted(&[], &[]).is_empty());
    }

    #[test]
    fn odd_text_is_refused() {
        for text in
            ["Node x, zone A 1", "Node 0, zone", "Node 0, zone A", "zone A 1", "Node 0, zone A -1"]
        {
            assert_eq!(parse::<u32>(text), None, "{text}");
        }
        assert_eq!(parse::<u32>(&format!("Node 0, zone A {}", "1 ".repeat(60))), None);
        // The largest counts must not panic.
        let most = format!("Node 0, zone A {}", "4294967295 ".repeat(32));
        free_pages(&parse(&most).unwrap()[0]);
    }
}
