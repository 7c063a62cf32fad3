// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's memory, physical and virtual. Read only.
//!
//! Virtual addresses are kernel addresses, translated by the guest's own page tables at each read:
//! nothing is remembered, so nothing goes stale. What a guest's memory holds may be chosen to do
//! harm, so each length that comes from there is bounded where it is used, and every walk here ends
//! after a fixed number of steps.

pub mod paging;
mod process;
mod raw;
pub mod scan;

use crate::error::{Error, Result};
use crate::vmm::Segment;
use paging::PageTables;
pub use process::ProcessRam;
use std::sync::Arc;

/// Physical memory of a guest, however it is reached.
pub trait Physical: Send + Sync {
    /// Fills `buffer` from guest-physical address `address` on.
    ///
    /// # Errors
    /// [`Error::NotRam`], [`Error::Unreadable`], [`Error::Gone`]; what `buffer` holds then is
    /// undefined.
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()>;

    /// RAM by address, without overlap.
    fn segments(&self) -> &[Segment];
}

/// A guest's memory.
#[derive(Clone)]
pub struct Memory {
    physical: Arc<dyn Physical>,
    tables: PageTables,
}

impl Memory {
    pub fn new(physical: Arc<dyn Physical>, tables: PageTables) -> Memory {
        Memory { physical, tables }
    }

    /// Fills `buffer` from guest-physical address `address` on.
    pub fn read_physical(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        self.physical.read(address, buffer)
    }

    /// Fills `buffer` from the kernel address `address` on.
    pub fn read_virtual(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let at = address.checked_add(done as u64).ok_or(Error::NotMapped { address })?;
            let (physical, rest) = self.tables.walk(&*self.physical, at)?;
            let len = rest.min((buffer.len() - done) as u64) as usize;
            self.physical.read(physical, &mut buffer[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// The guest-physical address of a kernel address.
    pub fn translate(&self, address: u64) -> Result<u64> {
        Ok(self.tables.walk(&*self.physical, address)?.0)
    }

    /// The address in the VMM's process of guest-physical `address`; `None` if that, or one of the
    /// seven bytes behind it, is not RAM: nothing of the VMM's own is read with a field.
    pub fn host_address(&self, address: u64) -> Option<u64> {
        let segment = segment_of(self.segments(), address)?;
        let offset = address - segment.gpa;
        (segment.len - offset >= 8).then(|| segment.hva + offset)
    }

    /// The address in the VMM's process of a kernel address.
    pub fn host_address_of(&self, address: u64) -> Result<u64> {
        let physical = self.translate(address)?;
        self.host_address(physical).ok_or(Error::NotRam { address: physical })
    }

    pub fn segments(&self) -> &[Segment] {
        self.physical.segments()
    }

    pub fn page_tables(&self) -> &PageTables {
        &self.tables
    }

    pub fn u8(&self, address: u64) -> Result<u8> {
        Ok(self.array::<1>(address)?[0])
    }

    pub fn u16(&self, address: u64) -> Result<u16> {
        self.array(address).map(u16::from_le_bytes)
    }

    pub fn u32(&self, address: u64) -> Result<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    pub fn i32(&self, address: u64) -> Result<i32> {
        self.array(address).map(i32::from_le_bytes)
    }

    pub fn u64(&self, address: u64) -> Result<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// A little-endian unsigned number of 1 to 8 bytes.
    pub fn unsigned(&self, address: u64, size: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let size = (size as usize).clamp(1, 8);
        self.read_virtual(address, &mut bytes[..size])?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub fn u32_physical(&self, address: u64) -> Result<u32> {
        let mut bytes = [0; 4];
        self.read_physical(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub fn u64_physical(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_physical(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// `N` bytes at a kernel address.
    pub fn array<const N: usize>(&self, address: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_virtual(address, &mut bytes)?;
        Ok(bytes)
    }

    /// `len` bytes at a kernel address. The caller bounds `len`.
    pub fn bytes(&self, address: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_virtual(address, &mut bytes)?;
        Ok(bytes)
    }

    /// A string of the kernel's, at most `max` bytes; what is not printable is replaced.
    pub fn string(&self, address: u64, max: usize) -> Result<String> {
        let mut bytes = Vec::new();
        while bytes.len() < max {
            let at = address.wrapping_add(bytes.len() as u64);
            // Up to the end of a page: the next one may not be mapped.
            let len = (4096 - (at & 4095) as usize).min(max - bytes.len()).min(64);
            let part = self.bytes(at, len)?;
            match part.iter().position(|&b| b == 0) {
                Some(end) => {
                    bytes.extend(&part[..end]);
                    break;
                }
                None => bytes.extend(part),
            }
        }
        Ok(printable(&bytes))
    }
}

/// Text from a guest, made safe for a terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let plain = |&b: &u8| if b == b' ' || b.is_ascii_graphic() { char::from(b) } else { '?' };
    bytes.iter().map(plain).collect()
}

/// The segment of `segments` (sorted) that `address` is in.
pub(crate) fn segment_of(segments: &[Segment], address: u64) -> Option<&Segment> {
    let index = segments.partition_point(|s| s.gpa <= address).checked_sub(1)?;
    segments.get(index).filter(|s| address < s.end())
}

/// Splits a read at the boundaries of segments and hands each part, as an address in the VMM, to
/// `part`.
pub(crate) fn by_segment(
    segments: &[Segment],
    address: u64,
    buffer: &mut [u8],
    mut part: impl FnMut(u64, u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let at = address.checked_add(done as u64).ok_or(Error::NotRam { address })?;
        let segment = segment_of(segments, at).ok_or(Error::NotRam { address: at })?;
        let len = (segment.end() - at).min((buffer.len() - done) as u64) as usize;
        part(at, segment.hva + (at - segment.gpa), &mut buffer[done..done + len])?;
        done += len;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Physical memory in this process, from address 0.
    pub struct Image(pub Vec<u8>, Vec<Segment>);

    impl Image {
        pub fn new(bytes: Vec<u8>) -> Image {
            let segment = Segment { gpa: 0, len: bytes.len() as u64, hva: 0 };
            Image(bytes, vec![segment])
        }
    }

    impl Physical for Image {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
            by_segment(&self.1, address, buffer, |_, at, part| {
                part.copy_from_slice(&self.0[at as usize..at as usize + part.len()]);
                Ok(())
            })
        }

        fn segments(&self) -> &[Segment] {
            &self.1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_split_at_segments() {
        let segments = [
            Segment { gpa: 0, len: 16, hva: 100 },
            Segment { gpa: 16, len: 16, hva: 500 },
            Segment { gpa: 64, len: 16, hva: 900 },
        ];
        let mut parts = Vec::new();
        let mut buffer = [0; 20];
        by_segment(&segments, 10, &mut buffer, |gpa, hva, part| {
            parts.push((gpa, hva, part.len()));
            Ok(())
        })
        .unwrap();
        assert_eq!(parts, [(10, 110, 6), (16, 500, 14)]);
        for address in [32, 63, 79, u64::MAX] {
            let result = by_segment(&segments, address, &mut buffer[..2], |_, _, _| Ok(()));
            assert!(matches!(result, Err(Error::NotRam { .. })), "{address}");
        }
        assert!(segment_of(&segments, 79).is_some() && segment_of(&[], 0).is_none());
    }

    #[test]
    fn text_of_a_guest_cannot_control_a_terminal() {
        assert_eq!(printable(b"sh\x1b[2J\xff"), "sh?[2J?");
    }
}
