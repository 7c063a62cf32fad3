// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process's memory mappings, from `/proc/PID/maps`.

use super::process;
use crate::error::{Error, Result};

/// Bytes of the list that are read at most: Linux allows 65,530 mappings unless told otherwise, and
/// the process chooses how long their files' names are.
pub const LIST_MAX: u64 = 32 << 20;

/// A mapping, or several that are adjacent and alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub writable: bool,
    pub shared: bool,
    /// Bytes into the file.
    pub offset: u64,
    /// Device of the file: the major and minor number of its file system's device.
    pub device: (u32, u32),
    /// Zero for anonymous memory.
    pub inode: u64,
    /// File or note (`[heap]`), empty for anonymous memory.
    pub path: String,
}

impl Mapping {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let (start, end, flags) = (hex(start)?, hex(end)?, fields.next()?.as_bytes());
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok()?;
        Some(Mapping {
            start,
            end,
            writable: flags.starts_with(b"rw"),
            shared: flags.get(3) == Some(&b's'),
            offset,
            device: (number(major)?, number(minor)?),
            inode,
            path: fields.next().unwrap_or_default().trim_start().to_owned(),
        })
    }

    /// Whether `next` goes on where this ends, in memory and in what is mapped.
    fn continues(&self, next: &Mapping) -> bool {
        self.end == next.start
            && (self.writable, self.shared, self.device, self.inode, &self.path)
                == (next.writable, next.shared, next.device, next.inode, &next.path)
            && (self.inode == 0 || self.offset + self.len() == next.offset)
    }
}

/// The mappings of process `pid`, by address.
pub fn read(pid: u32) -> Result<Vec<Mapping>> {
    let text = process::file(pid, "maps", LIST_MAX);
    let text = text.map_err(Error::io(format!("/proc/{pid}/maps")))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Mapping::parse).collect())
}

/// Joins mappings that the kernel keeps apart for reasons of its own (advice, NUMA policy).
pub fn joined(mappings: &[Mapping]) -> Vec<Mapping> {
    let mut out: Vec<Mapping> = Vec::new();
    for mapping in mappings {
        match out.last_mut() {
            Some(last) if last.continues(mapping) => last.end = mapping.end,
            _ => out.push(mapping.clone()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d000000000-55d000001000 r-xp 00000000 fe:00 42                         /usr/bin/qemu system
7f0000000000-7f0020000000 rw-p 00000000 00:00 0 
7f0020000000-7f0040000000 rw-p 00000000 00:00 0 
7f0040000000-7f0040001000 ---p 00000000 00:00 0 
7f0050000000-7f0060000000 rw-s 00000000 00:01 2057                       /memfd:ram (deleted)
7f0060000000-7f0070000000 rw-s 10000000 00:01 2057                       /memfd:ram (deleted)
7f0070000000-7f0080000000 rw-s 00000000 00:01 2057                       /memfd:ram (deleted)
nonsense
";

    #[test]
    fn joins_what_belongs_together() {
        let all: Vec<Mapping> = MAPS.lines().filter_map(Mapping::parse).collect();
        assert_eq!(all.len(), 7);
        assert_eq!(all[0].path, "/usr/bin/qemu system");
        assert_eq!((all[0].device, all[0].inode, all[1].device), ((0xfe, 0), 42, (0, 0)));
        assert!(!all[0].writable && all[4].shared && all[4].path == "/memfd:ram (deleted)");
        let lengths: Vec<u64> = joined(&all).iter().map(Mapping::len).collect();
        assert_eq!(lengths, [0x1000, 0x4000_0000, 0x1000, 0x2000_0000, 0x1000_0000]);
    }

    #[test]
    fn reads_its_own() {
        let here = MAPS.as_ptr() as u64;
        let own = read(std::process::id()).unwrap();
        assert!(own.iter().any(|m| m.start <= here && here < m.end));
        assert!(matches!(read(u32::MAX), Err(Error::Io { .. })));
    }
}
