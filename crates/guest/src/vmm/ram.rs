// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a PC's RAM is, in the guest's physical memory and in QEMU's, when QEMU cannot be asked.
//!
//! RAM begins at 0 and goes on above 4 GiB where it does not fit below the hole for devices; where
//! that begins depends on chipset and size (`pc_init1` and `pc_q35_init` in QEMU's `hw/i386`). In
//! QEMU's memory each block of RAM is one mapping, 2 MiB aligned, with an inaccessible page behind
//! it. The layouts that are guessed here are checked against the guest's page tables later, so
//! several are returned.

use super::Segment;
use super::cmdline::{Machine, Options};
use super::maps::{self, Mapping};
use std::cell::LazyCell;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 * GIB;

/// The smallest block that is looked for.
const LEAST: u64 = MIB;

/// Blocks of RAM, at most. QEMU has no more NUMA nodes. A command line may name as many as it
/// likes, and each is looked for among all mappings.
const BLOCKS_MAX: usize = 128;

/// A block of RAM in the VMM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub hva: u64,
    pub len: u64,
}

/// The possible layouts, best first; empty if the RAM is not found.
pub fn layouts(options: &Options, mappings: &[Mapping]) -> Vec<Vec<Segment>> {
    let Some(blocks) = blocks(options, mappings) else { return Vec::new() };
    let total = blocks.iter().fold(0u64, |sum, b| sum.saturating_add(b.len));
    let mut lows = vec![low(options.machine, total, options.max_below_4g)];
    for other in [2 * GIB, 0xb000_0000, 3 * GIB, 0xe000_0000] {
        let other = other.min(total);
        if !lows.contains(&other) {
            lows.push(other);
        }
    }
    lows.into_iter().map(|low| lay_out(&blocks, low)).collect()
}

/// How much of `total` bytes of RAM lies below the hole.
pub fn low(machine: Machine, total: u64, limit: Option<u64>) -> u64 {
    let low = match machine {
        Machine::Pc | Machine::Other => match limit.unwrap_or(0xe000_0000) {
            // With more than fits, the hole begins at a whole GiB.
            limit if total >= limit => limit.min(3 * GIB),
            limit => limit,
        },
        Machine::Q35 if total >= 0xb000_0000 => (2 * GIB).min(limit.unwrap_or(u64::MAX)),
        Machine::Q35 => 0xb000_0000.min(limit.unwrap_or(u64::MAX)),
    };
    low.min(total)
}

/// Lays `blocks` out from address 0, `low` bytes of them below the hole and the rest from 4 GiB on.
pub fn lay_out(blocks: &[Block], low: u64) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut done = 0;
    for block in blocks {
        let mut offset = 0;
        while offset < block.len {
            let (gpa, room) = match done < low {
                true => (done, low - done),
                false => (FOUR_GIB + (done - low), u64::MAX),
            };
            let len = room.min(block.len - offset);
            segments.push(Segment { gpa, len, hva: block.hva + offset });
            offset += len;
            done += len;
        }
    }
    segments
}

/// The blocks of the machine's RAM, in the guest's order.
fn blocks(options: &Options, mappings: &[Mapping]) -> Option<Vec<Block>> {
    if options.memory_devices.len() > BLOCKS_MAX {
        return None;
    }
    let wanted: Vec<(u64, Option<String>)> = if options.memory_devices.is_empty() {
        vec![(options.memory, None)]
    } else {
        let named = |id: &String| options.backends.iter().find(|b| b.id == *id);
        let wanted = options.memory_devices.iter().map(|id| {
            let backend = named(id)?;
            Some((backend.size, backend.path.as_ref().map(|p| p.display().to_string())))
        });
        wanted.collect::<Option<_>>()?
    };
    let joined = LazyCell::new(|| maps::joined(mappings));
    let mut found: Vec<Block> = Vec::new();
    for (size, path) in wanted {
        found.push(block(mappings, &joined, size, path.as_deref(), &found)?);
    }
    Some(found)
}

/// The mapping that is a block of `size` bytes and is none of `taken`. `joined`: the same mappings,
/// neighbours joined.
fn block<F: FnOnce() -> Vec<Mapping>>(
    mappings: &[Mapping],
    joined: &LazyCell<Vec<Mapping>, F>,
    size: u64,
    path: Option<&str>,
    taken: &[Block],
) -> Option<Block> {
    if size < LEAST {
        return None;
    }
    let free = |m: &&Mapping| {
        m.writable
            && m.len() >= size
            && !taken.iter().any(|b| m.start < b.hva + b.len && b.hva < m.end)
    };
    // A directory as the backend's path holds a nameless file.
    let named = |m: &&Mapping| match path {
        Some(path) => m.path.starts_with(path),
        None => m.inode == 0 && m.path.is_empty() || m.path.starts_with("/memfd:"),
    };
    let exact = |all: &[Mapping]| {
        // QEMU's mappings go downwards: of several alike, the first block is the highest.
        all.iter().rev().filter(free).filter(named).find(|m| m.len() == size).map(|m| m.start)
    };
    let within = || {
        let large = joined.iter().rev().filter(free).filter(named);
        let aligned = |hva: u64| hva % (2 * MIB) == 0;
        // The inaccessible page behind a block keeps its end apart from other memory, so its start
        // follows.
        large.flat_map(|m| [m.end - size, m.start]).find(|&hva| aligned(hva))
    };
    let hva = exact(mappings).or_else(|| exact(joined)).or_else(within)?;
    Some(Block { hva, len: size })
}

#[cfg(test)]
mod tests {
    use super::super::cmdline::Backend;
    use super::*;

    #[test]
    fn the_hole_is_where_qemu_puts_it() {
        for (machine, mib, low_mib) in [
            (Machine::Pc, 512, 512),
            (Machine::Pc, 3583, 3583),
            (Machine::Pc, 3584, 3072),
            (Machine::Pc, 5120, 3072),
            (Machine::Q35, 2048, 2048),
            (Machine::Q35, 2815, 2815),
            (Machine::Q35, 2816, 2048),
            (Machine::Q35, 3072, 2048),
        ] {
            assert_eq!(low(machine, mib * MIB, None), low_mib * MIB, "{machine:?} {mib}");
        }
        assert_eq!(low(Machine::Q35, 8 * GIB, Some(GIB)), GIB);
        assert_eq!(low(Machine::Pc, 8 * GIB, Some(2 * GIB)), 2 * GIB);
    }

    #[test]
    fn blocks_go_around_the_hole() {
        let blocks =
            [Block { hva: 0x10_0000_0000, len: 2 * GIB }, Block { hva: 0x7000_0000, len: 3 * GIB }];
        let segments = lay_out(&blocks, 3 * GIB);
        let expected = [
            (0, 2 * GIB, 0x10_0000_0000),
            (2 * GIB, GIB, 0x7000_0000),
            (4 * GIB, 2 * GIB, 0x7000_0000 + GIB),
        ];
        let expected = expected.map(|(gpa, len, hva)| Segment { gpa, len, hva });
        assert_eq!(segments, expected);
    }

    fn mapping(start: u64, len: u64, path: &str) -> Mapping {
        Mapping {
            start,
            end: start + len,
            writable: true,
            shared: false,
            offset: 0,
            device: (0, 0),
            inode: u64::from(!path.is_empty()),
            path: path.into(),
        }
    }

    #[test]
    fn a_command_line_with_too_many_blocks_is_not_followed() {
        let backend = Backend { id: "a".into(), size: MIB, path: None };
        let base = 0x7f00_0000_0000;
        let all: Vec<Mapping> =
            (0..=BLOCKS_MAX as u64).map(|n| mapping(base + 2 * n * MIB, MIB, "")).collect();
        let layouts = |devices: usize| {
            let options = Options {
                backends: vec![backend.clone()],
                memory_devices: vec!["a".into(); devices],
                ..Options::default()
            };
            layouts(&options, &all)
        };
        assert_eq!(layouts(BLOCKS_MAX)[0].len(), BLOCKS_MAX);
        assert!(layouts(BLOCKS_MAX + 1).is_empty());
    }

    #[test]
    fn finds_ram_among_other_memory() {
        let options = Options { memory: GIB, ..Options::default() };
        let base = 0x7f00_0000_0000;
        let exact = [mapping(base, GIB, ""), mapping(base + 2 * GIB, 2 * GIB, "/usr/lib/big.so")];
        assert_eq!(layouts(&options, &exact)[0][0].hva, base);
        // Joined by the kernel with a neighbour below.
        let more = [mapping(base - 0x3000, GIB + 0x3000, "")];
        assert_eq!(layouts(&options, &more)[0][0].hva, base);
        let parts = [mapping(base, GIB / 2, ""), mapping(base + GIB / 2, GIB / 2, "")];
        assert_eq!(layouts(&options, &parts)[0][0].hva, base);
        assert!(layouts(&options, &[mapping(base, GIB / 2, "")]).is_empty());
    }

    #[test]
    fn finds_backends_by_their_files() {
        let argv = "qemu -m 2G -object memory-backend-file,id=a,size=1G,mem-path=/dev/shm/a -object memory-backend-ram,id=b,size=1G \
                    -numa node,memdev=a -numa node,memdev=b";
        let options = Options::parse(&argv.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let maps =
            [mapping(0x1000_0000_0000, GIB, "/dev/shm/a"), mapping(0x2000_0000_0000, GIB, "")];
        let all = layouts(&options, &maps);
        assert_eq!(all[0][0], Segment { gpa: 0, len: GIB, hva: 0x1000_0000_0000 });
        assert_eq!(all[0][1], Segment { gpa: GIB, len: GIB, hva: 0x2000_0000_0000 });
    }
}
