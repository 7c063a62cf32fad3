// SPDX-License-Identifier: MIT OR Apache-2.0
//! `/proc/meminfo`, and what counts as used memory.
//!
//! Used is total - free - buffers - page cache: what the kernel and the programs hold. The page
//! cache (`Cached`) contains tmpfs data (`Shmem`), so a workload's files do not count. All slab
//! memory does, reclaimable or not: objects that wait for a grace period are in both kinds
//! (dentries in the reclaimable one), and a guest with only tmpfs has almost nothing that could be
//! reclaimed.

/// The fields used, kB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    pub total_kb: u64,
    pub free_kb: u64,
    pub buffers_kb: u64,
    pub cached_kb: u64,
    pub slab_kb: u64,
}

impl MemInfo {
    pub fn used_kb(&self) -> u64 {
        self.total_kb.saturating_sub(self.free_kb + self.buffers_kb + self.cached_kb)
    }
}

/// Reads the fields out of the file's text; `None` if one is missing or not a number.
pub fn parse(text: &[u8]) -> Option<MemInfo> {
    let mut info = MemInfo::default();
    let mut seen = 0;
    for line in text.split(|b| *b == b'\n') {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            continue;
        };
        let field = match &line[..colon] {
            b"MemTotal" => &mut info.total_kb,
            b"MemFree" => &mut info.free_kb,
            b"Buffers" => &mut info.buffers_kb,
            b"Cached" => &mut info.cached_kb,
            b"Slab" => &mut info.slab_kb,
            _ => continue,
        };
        let value = std::str::from_utf8(&line[colon + 1..]).ok()?;
        *field = value.split_whitespace().next()?.parse::<u64>().ok().filter(|kb| *kb < 1 << 50)?;
        seen += 1;
        if seen == 5 {
            return Some(info);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_stock_guests_are_understood() {
        let captured = [
            (include_str!("testdata/6.1.meminfo"), (481056, 394796, 0, 31984, 35068), 54276),
            (include_str!("testdata/6.12.meminfo"), (475768, 377152, 0, 31756, 19004), 66860),
            (include_str!("testdata/7.3.meminfo"), (469800, 367016, 0, 31792, 21312), 70992),
        ];
        for (text, (total_kb, free_kb, buffers_kb, cached_kb, slab_kb), used) in captured {
            let info = parse(text.as_bytes()).unwrap();
            assert_eq!(info, MemInfo { total_kb, free_kb, buffers_kb, cached_kb, slab_kb });
            assert_eq!(info.used_kb(), used);
        }
    }

    #[test]
    fn odd_text_is_refused() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"MemTotal: x kB\n"), None);
        assert_eq!(parse(b"MemTotal:\n"), None);
        assert_eq!(parse(b"MemTotal: \xff kB\n"), None);
        assert_eq!(parse(b"MemTotal: 99999999999999999999 kB\n"), None);
        let more_free_than_there_is =
            b"MemTotal: 1 kB\nMemFree: 5 kB\nBuffers: 5 kB\nCached: 5 kB\nSlab: 5 kB\n";
        assert_eq!(parse(more_free_than_there_is).unwrap().used_kb(), 0);
    }
}
