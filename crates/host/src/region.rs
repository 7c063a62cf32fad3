// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a VM's guest shares with this host, for hints of the guest's programs
//! (`crates/hint/include/reprieve/hint_region.h`): found in the VMM's process, whatever the file is
//! called and whether it still has a name.

use reprieve_hint::abi::region::{BYTES, View, is_region, publish, read};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;

/// A VM's region.
pub struct Region {
    path: PathBuf,
    file: File,
    /// In the VMM's process.
    pub address: u64,
}

impl Region {
    /// The region that the process has mapped. `None`: it has none, or it may not be looked for.
    pub fn find(pid: u32) -> Option<Region> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        maps.lines().filter_map(shared_mapping).find_map(|(range, address)| {
            let path = PathBuf::from(format!("/proc/{pid}/map_files/{range}"));
            // A device of the host's may not like to be opened.
            if !std::fs::metadata(&path).ok()?.is_file() {
                return None;
            }
            let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
            is_region(&file).ok()?.then_some(Region { path, file, address })
        })
    }

    /// Says to the guest's programs what the host does: state and runnable threads by vCPU, and a
    /// beat that differs from the last one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn publish(&self, beat: u64, vcpus: &[(u32, u32)]) -> io::Result<()> {
        publish(&self.file, beat, vcpus)
    }

    /// All of it, as of about now.
    ///
    /// # Errors
    /// If it is no longer mapped there.
    pub fn view(&self) -> io::Result<View> {
        View::parse(&read(&self.path)?).ok_or_else(|| io::Error::other("no region"))
    }
}

/// A line of `/proc/PID/maps`: range and start of a mapping that may be a region's.
fn shared_mapping(line: &str) -> Option<(&str, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let fits = end.checked_sub(start)? == BYTES as u64 && number(offset)? == 0;
    (fits && rights == "rw-s").then_some((range, start))
}

#[cfg(test)]
mod tests {
    use super::shared_mapping;

    #[test]
    fn only_shared_mappings_of_that_size_are_looked_at() {
        let line = "7f0000000000-7f0000100000 rw-s 00000000 00:18 7 /dev/shm/a b";
        let found = ("7f0000000000-7f0000100000", 0x7f00_0000_0000);
        assert_eq!(shared_mapping(line), Some(found));
        for (from, to) in [("rw-s", "rw-p"), ("100000 rw", "200000 rw"), (" 00000000", " 00001000")]
        {
            assert_eq!(shared_mapping(&line.replace(from, to)), None, "{to}");
        }
        assert_eq!(shared_mapping("7f-"), None);
        assert_eq!(shared_mapping(""), None);
    }
}
