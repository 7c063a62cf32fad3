// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a VM's guest shares with this host, for hints of the guest's programs
//! (`crates/hint/include/reprieve/hint_region.h`): found in the VMM's process, whatever the file is
//! called and whether it still has a name.

use super::raw::read_process;
use reprieve_guest::vmm::maps::{self, Mapping};
use reprieve_hint::abi::region::{BYTES, MAGIC, VERSION, View, is_region, publish};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

/// Mappings of a region's size that are looked at: a process may have thousands.
const CANDIDATES: usize = 64;

/// A VM's region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pid: u32,
    /// In the VMM's process.
    address: u64,
}

impl Region {
    /// The region that the process has mapped. `None`: it has none, or it may not be looked for.
    pub fn find(pid: u32) -> Option<Region> {
        let is_one = |address: &u64| {
            let mut head = [0; 8];
            read_process(pid, *address, &mut head).is_ok()
                && head == *[MAGIC.to_ne_bytes(), VERSION.to_ne_bytes()].as_flattened()
        };
        let fits = |m: &Mapping| m.shared && m.writable && m.offset == 0 && m.len() == BYTES as u64;
        let maps = maps::read(pid).ok()?.into_iter().filter(fits).take(CANDIDATES);
        let address = maps.map(|mapping| mapping.start).find(is_one)?;
        Some(Region { pid, address })
    }

    /// Where it is in the VMM's process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// All of it, as of about now.
    ///
    /// # Errors
    /// If it is no longer mapped there.
    pub fn view(&self) -> io::Result<View> {
        let mut bytes = vec![0; BYTES];
        read_process(self.pid, self.address, &mut bytes)?;
        View::parse(&bytes).ok_or_else(|| io::Error::other("the region is no longer one"))
    }

    /// For writing to it: its file, which no longer needs a name.
    ///
    /// # Errors
    /// Without root's rights, if it is no longer mapped there, or if somebody holds a lease on it.
    pub fn open(&self) -> io::Result<Writer> {
        let (start, end) = (self.address, self.address + BYTES as u64);
        let path = format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid);
        // A device of the host's may not like to be opened.
        let refused = || io::Error::other("the region is no longer one");
        if !std::fs::metadata(&path)?.is_file() {
            return Err(refused());
        }
        // Its owner may hold a lease on it, for the end of which an open would wait.
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        if is_region(&file)? { Ok(Writer(file)) } else { Err(refused()) }
    }
}

/// Says to a guest's programs what the host does.
pub struct Writer(File);

impl Writer {
    /// State and runnable vCPUs by vCPU, and a beat that differs from the last one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn publish(&self, beat: u64, vcpus: &[(u32, u32)]) -> io::Result<()> {
        publish(&self.0, beat, vcpus)
    }
}
