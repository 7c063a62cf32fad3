// SPDX-License-Identifier: MIT OR Apache-2.0
//! External fragmentation: the kernel's unusable free space index.
//!
//! For each zone and page order, the share of the free memory that lies in blocks too small for an
//! allocation of that order: 0 when all of it could be used, 1 when none could. The kernel shows it
//! in `extfrag/unusable_index` (debugfs); where that is missing it is computed here from
//! `/proc/buddyinfo` in the kernel's own integer arithmetic (`mm/vmstat.c`). A guest's value per
//! order is the mean over the zones, weighted by their free pages.

use std::fs;

const BUDDYINFO: &str = "/proc/buddyinfo";
const INDEX: &str = "/sys/kernel/debug/extfrag/unusable_index";
/// Both files are read at different times; a comparison needs a moment in which nothing is
/// allocated.
const ATTEMPTS: u32 = 20;

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
    let index = fs::read_to_string(INDEX).ok().and_then(|text| parse(&text));
    Some(weighted(&buddy, &index.unwrap_or_else(|| compute(&buddy))))
}

/// Compares the computed index with the kernel's; says so if they differ each time.
pub fn check() -> Option<String> {
    let mut differ = None;
    for _ in 0..ATTEMPTS {
        let before = fs::read_to_string(BUDDYINFO).ok()?;
        let Ok(kernels) = fs::read_to_string(INDEX) else {
            return Some(format!("{INDEX} is not there: computing the index from {BUDDYINFO}"));
        };
        // Memory may have been allocated and freed in between all the same.
        if fs::read_to_string(BUDDYINFO).ok()? == before {
            differ = Some(disagreement(&before, &kernels)?);
        }
    }
    differ
}

fn disagreement(buddyinfo: &str, kernels: &str) -> Option<String> {
    let (Some(buddy), Some(kernels)) = (parse(buddyinfo), parse(kernels)) else {
        return Some(format!("cannot parse {BUDDYINFO} or {INDEX}"));
    };
    let ours = compute(&buddy);
    let differs = |(a, b): (&Zone<f64>, &Zone<f64>)| {
        a.node != b.node
            || a.name != b.name
            || a.orders.len() != b.orders.len()
            || a.orders.iter().zip(&b.orders).any(|(x, y)| (x - y).abs() > 1e-9)
    };
    (ours.len() != kernels.len() || ours.iter().zip(&kernels).any(differs)).then(|| {
        format!("the kernel's unusable free space index differs from ours: {kernels:?}, {ours:?}")
    })
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

/// As `unusable_free_index()`: thousandths, rounded down; 1 where nothing is free.
fn compute(buddy: &[Zone<u32>]) -> Vec<Zone<f64>> {
    let zone = |zone: &Zone<u32>| {
        let free = free_pages(zone);
        let mut usable = free;
        let orders = zone.orders.iter().enumerate().map(|(order, blocks)| {
            let index =
                if free == 0 { 1000 } else { (free - usable) as u128 * 1000 / free as u128 };
            usable -= u64::from(*blocks) << order;
            index as f64 / 1000.0
        });
        Zone { node: zone.node, name: zone.name.clone(), orders: orders.collect() }
    };
    buddy.iter().map(zone).collect()
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

    /// Both files of one idle moment of a stock guest.
    const CAPTURED: [(&str, &str); 3] = [
        (include_str!("testdata/6.1.buddyinfo"), include_str!("testdata/6.1.unusable_index")),
        (include_str!("testdata/6.12.buddyinfo"), include_str!("testdata/6.12.unusable_index")),
        (include_str!("testdata/7.3.buddyinfo"), include_str!("testdata/7.3.unusable_index")),
    ];

    #[test]
    fn formula_is_the_kernels() {
        for (buddyinfo, index) in CAPTURED {
            assert_eq!(disagreement(buddyinfo, index), None);
        }
    }

    #[test]
    fn disagreement_is_told() {
        let (buddyinfo, index) = CAPTURED[0];
        assert!(disagreement(buddyinfo, &index.replace("0.172", "0.173")).is_some());
        assert!(disagreement(buddyinfo, CAPTURED[1].1).is_some());
        assert!(disagreement("", "Node").is_some());
    }

    #[test]
    fn zones_count_by_their_free_pages() {
        let buddy =
            parse("Node 0, zone A 3 0 0\nNode 0, zone B 0 0 3\nNode 1, zone A 0 0 0\n").unwrap();
        let index = compute(&buddy);
        assert_eq!(index[0].orders, [0.0, 1.0, 1.0]);
        assert_eq!(index[1].orders, [0.0, 0.0, 0.0]);
        assert_eq!(index[2].orders, [1.0, 1.0, 1.0]);
        assert_eq!(weighted(&buddy, &index), [0.0, 3.0 / 15.0, 3.0 / 15.0]);
    }

    #[test]
    fn odd_text_is_refused() {
        for text in
            ["Node x, zone A 1", "Node 0, zone", "Node 0, zone A", "zone A 1", "Node 0, zone A -1"]
        {
            assert_eq!(parse::<u32>(text), None, "{text}");
        }
        assert_eq!(parse::<u32>(&format!("Node 0, zone A {}", "1 ".repeat(60))), None);
        // Nothing free at all, and the largest counts, must not panic.
        let most = format!("Node 0, zone A {}", "4294967295 ".repeat(32));
        compute(&parse(&most).unwrap());
        assert!(weighted(&[], &[]).is_empty());
    }
}
