// SPDX-License-Identifier: MIT OR Apache-2.0
//! RAM layout from QEMU's own description: `info mtree -f` (guest-physical address to block and
//! offset) and `info ramblock` (block to address in QEMU, in newer versions).

use super::Segment;

/// The end of the 32-bit space, where the hole for devices ends.
const FOUR_GIB: u64 = 1 << 32;

/// Below it, parts of RAM are covered by video memory and firmware.
const MIB: u64 = 1 << 20;

/// The end of what x86's page tables can address.
const PHYSICAL_END: u64 = 1 << 52;

/// Stretches of RAM that are looked at, and blocks. A VM with 256 memory modules has fewer.
const RANGES_MAX: usize = 1024;

/// A stretch of RAM in the flat view of an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub gpa: u64,
    pub len: u64,
    pub block: String,
    /// Into the block.
    pub offset: u64,
}

/// RAM in the address space `memory`, by address. Device memory that QEMU keeps as RAM (video,
/// firmware) is left out: it lies in the hole.
pub fn flat_view(text: &str) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("FlatView #") {
            if !ranges.is_empty() {
                break;
            }
            inside = false;
        } else if trimmed.starts_with("AS \"memory\"") {
            inside = true;
        } else if inside {
            ranges.extend(range(trimmed));
        }
        if ranges.len() > RANGES_MAX {
            return Vec::new();
        }
    }
    ranges.sort_by_key(|r| r.gpa);
    let Some(main) = ranges.first().filter(|r| r.gpa == 0).map(|r| r.block.clone()) else {
        return Vec::new();
    };
    // The blocks of NUMA nodes follow each other without a gap up to the hole.
    let mut end = 0;
    let mut blocks = vec![main];
    for range in &ranges {
        let adjacent = (range.gpa == end && end >= MIB) || range.gpa >= FOUR_GIB;
        if adjacent && !blocks.contains(&range.block) {
            blocks.push(range.block.clone());
        }
        if blocks.contains(&range.block) {
            end = range.gpa.saturating_add(range.len);
        }
    }
    ranges.retain(|r| blocks.contains(&r.block));
    ranges
}

/// `0000000000000000-000000000009ffff (prio 0, ram): pc.ram @0000000000000000 KVM`.
fn range(line: &str) -> Option<Range> {
    let (addresses, rest) = line.split_once(" (prio ")?;
    let (first, last) = addresses.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (gpa, last) = (hex(first)?, hex(last).filter(|&last| last < PHYSICAL_END)?);
    let (kind, rest) = rest.split_once("): ")?;
    // Shadow copies of ROM are RAM that is write-protected for the moment.
    if !(kind.ends_with(", ram") || kind.ends_with(", rom")) {
        return None;
    }
    let rest = rest.strip_suffix(" KVM").unwrap_or(rest);
    let (block, offset) = match rest.rsplit_once(" @") {
        Some((block, offset)) => (block, hex(offset)?),
        None => (rest, 0),
    };
    Some(Range { gpa, len: last.checked_sub(gpa)?.checked_add(1)?, block: block.into(), offset })
}

/// A block and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamBlock {
    pub name: String,
    /// Bytes in use.
    pub len: u64,
    /// Address in QEMU's memory, where this version of QEMU tells.
    pub hva: Option<u64>,
}

/// `info ramblock`.
pub fn ram_blocks(text: &str) -> Vec<RamBlock> {
    let mut lines = text.lines();
    let has_hva = lines.next().is_some_and(|head| head.contains("HVA"));
    let block = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        // Name, page size with its unit, offset, used, total, HVA.
        let first = fields.iter().position(|f| f.starts_with("0x"))?;
        let name = fields[..first.checked_sub(2)?].join(" ");
        let len = hex(fields.get(first + 1)?)?;
        let hva = fields.get(first + 3).filter(|_| has_hva).and_then(|f| hex(f));
        Some(RamBlock { name, len, hva })
    };
    lines.filter_map(block).take(RANGES_MAX).collect()
}

/// Joins both; `locate` finds a block that QEMU gives no address for. `None` if a block is not
/// found.
pub fn segments(
    ranges: &[Range],
    blocks: &[RamBlock],
    locate: impl Fn(&RamBlock) -> Option<u64>,
) -> Option<Vec<Segment>> {
    let mut segments: Vec<Segment> = Vec::new();
    for range in ranges {
        // A region's name is the last part of its block's.
        let same = |b: &&RamBlock| {
            b.name == range.block || b.name.rsplit('/').next() == Some(&range.block)
        };
        let block = blocks.iter().find(same)?;
        if range.offset.checked_add(range.len)? > block.len {
            return None;
        }
        let hva = block.hva.or_else(|| locate(block))?.checked_add(range.offset)?;
        match segments.last_mut() {
            // Adjacent, or with nothing but the PC's oldest devices and firmware in between, behind
            // which the block goes on.
            Some(last)
                if range.gpa >= last.end()
                    && range.gpa - last.gpa == hva.wrapping_sub(last.hva)
                    && (range.gpa == last.end() || range.gpa <= MIB) =>
            {
                last.len = range.gpa - last.gpa + range.len;
            }
            Some(last) if last.end() > range.gpa => return None,
            _ => segments.push(Segment { gpa: range.gpa, len: range.len, hva }),
        }
    }
    (!segments.is_empty()).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTREE: &str = "\
FlatView #0
 AS \"I/O\", root: io
 Root memory region: io
  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan

FlatView #1
 AS \"memory\", root: system
 AS \"cpu-memory-0\", root: system
 Root memory region: system
  0000000000000000-000000000009ffff (prio 0, ram): pc.ram KVM
  00000000000a0000-00000000000affff (prio 1, ram): vga.vram
  00000000000c0000-00000000000c3fff (prio 0, rom): pc.ram @00000000000c0000 KVM
  00000000000c4000-00000000bfffffff (prio 0, ram): pc.ram @00000000000c4000 KVM
  00000000fd000000-00000000fdffffff (prio 1, ram): vga.vram
  00000000fec00000-00000000fec00fff (prio 0, i/o): ioapic
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios
  0000000100000000-000000017fffffff (prio 0, ram): pc.ram @00000000c0000000 KVM

FlatView #2
 AS \"other\", root: pci
  0000000000000000-00000000bfffffff (prio 0, ram): pc.ram
";

    const BLOCKS: &str = "\
              Block Name    PSize              Offset               Used              Total                HVA  RO
                  pc.ram    4 KiB  0x0000000000000000 0x0000000140000000 0x0000000140000000 0x00007f0000000000  rw
   0000:00:02.0/vga.vram    4 KiB  0x0000000140080000 0x0000000001000000 0x0000000001000000 0x00007effe0000000  rw
";

    #[test]
    fn reads_what_qemu_says() {
        let ranges = flat_view(MTREE);
        assert_eq!(ranges.len(), 4);
        let blocks = ram_blocks(BLOCKS);
        assert_eq!(blocks.len(), 2);
        let segments = segments(&ranges, &blocks, |_| None).unwrap();
        let hva = 0x7f00_0000_0000;
        assert_eq!(
            segments,
            [
                Segment { gpa: 0, len: 0xc000_0000, hva },
                Segment { gpa: FOUR_GIB, len: 0x8000_0000, hva: hva + 0xc000_0000 }
            ]
        );
    }

    #[test]
    fn an_older_qemu_does_not_tell_the_address() {
        let old: String = BLOCKS
            .lines()
            .map(|l| {
                let cut = l.find("  rw").or(l.find("  RO")).unwrap() - 19;
                format!("{}\n", &l[..cut])
            })
            .collect();
        let blocks = ram_blocks(&old);
        assert_eq!(blocks[0], RamBlock { name: "pc.ram".into(), len: 0x1_4000_0000, hva: None });
        assert_eq!(segments(&flat_view(MTREE), &blocks, |_| None), None);
        let found =
            segments(&flat_view(MTREE), &blocks, |b| (b.name == "pc.ram").then_some(0x1000));
        assert_eq!(found.unwrap()[0].hva, 0x1000);
    }

    #[test]
    fn nonsense_has_no_ram() {
        for text in [
            "",
            "FlatView #0\n AS \"memory\", root: system\n  5-4 (prio 0, ram): x\n  0-zz (prio 0, ram): y\n",
        ] {
            assert!(flat_view(text).is_empty(), "{text}");
            assert!(ram_blocks(text).is_empty());
        }
        let view = |ranges: &str| flat_view(&format!("FlatView #0\n AS \"memory\"\n{ranges}"));
        let most = "0000000000000000-7fffffffffffffff (prio 0, ram): a\n";
        assert!(view(most).is_empty(), "more than any processor addresses");
        let many = |n: u64| -> String {
            (0..n)
                .map(|i| format!("{:x}-{:x} (prio 0, ram): {i}\n", i << 20, (i << 20) + 0xfffff))
                .collect()
        };
        assert_eq!(view(&many(1024)).len(), 1024);
        assert!(view(&many(1025)).is_empty());
        let beyond = [Range { gpa: 0, len: 2, block: "a".into(), offset: u64::MAX }];
        let blocks = [RamBlock { name: "a".into(), len: 4, hva: Some(0) }];
        assert_eq!(segments(&beyond, &blocks, |_| None), None);
    }
}
