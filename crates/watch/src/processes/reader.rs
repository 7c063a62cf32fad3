// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the runtime of one process: from the note in an ELF file to its threads and waiting
//! callbacks. Module `inspect` of the runtime describes the structures.

use crate::model::Domain;
use crate::raw::clock::now_ns;
use crate::raw::read_process;
use object::elf;
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use std::io;

/// Bytes read of one process per look.
pub const BUDGET: usize = 16 << 20;
/// Bytes that a read counts as at least: a system call is as dear as some bytes.
const PRICE: usize = 256;
/// Bytes read of an ELF file's headers, and of a segment of notes.
const HEADERS: usize = 4096;
const NOTES: usize = 16 << 10;
/// More than the runtime has (`MAX_DOMAINS`).
const DOMAINS: u32 = 4096;
/// Domains of a process that are shown, and their laggards in all. A process may claim any number
/// of them, and each domain is several series.
pub const SHOWN: usize = 256;
const LAGGARDS: usize = 1024;

type Header = elf::FileHeader64<object::Endianness>;

/// As `Descriptor` in the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    registries: u64,
    cores: u64,
    domains: u32,
    registry_bytes: u32,
    chunk_records: u32,
    records: u32,
    record_bytes: u32,
    record_word: u32,
    record_owner: u32,
    record_snapshot: u32,
    core_sequence: u32,
    core_completed: u32,
    core_since: u32,
    core_lanes: u32,
    lane_bytes: u32,
    lane_registered: u32,
    lane_finished: u32,
}

const DESCRIPTOR: usize = 8 + 8 + 16 + 15 * 4;
const VERSION: u32 = 1;

/// Reads a process's memory, up to a limit.
pub struct Reader {
    pid: u32,
    left: usize,
}

impl Reader {
    pub fn new(pid: u32, left: usize) -> Reader {
        Reader { pid, left }
    }

    /// Bytes that may still be read.
    pub fn left(&self) -> usize {
        self.left
    }

    fn bytes(&mut self, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let price = length.max(PRICE);
        if price > self.left {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.left -= price;
        let mut bytes = vec![0; length];
        read_process(self.pid, address, &mut bytes)?;
        Ok(bytes)
    }

    fn u64(&mut self, address: u64) -> io::Result<u64> {
        Ok(u64_at(&self.bytes(address, 8)?, 0))
    }

    /// The runtime's descriptor, if the ELF file that is mapped at `start` has one.
    pub fn descriptor(&mut self, start: u64) -> Option<u64> {
        let head = self.bytes(start, HEADERS).ok()?;
        let header = Header::parse(head.as_slice()).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, head.as_slice()).ok()?;
        let first = segments.iter().find(|s| s.p_type(endian) == elf::PT_LOAD)?;
        let bias = start.wrapping_sub(first.p_vaddr(endian) & !0xfff);
        for segment in segments.iter().filter(|s| s.p_type(endian) == elf::PT_NOTE) {
            let length = usize::try_from(segment.p_memsz(endian)).unwrap_or(usize::MAX).min(NOTES);
            let address = bias.wrapping_add(segment.p_vaddr(endian));
            let Ok(notes) = self.bytes(address, length) else { continue };
            let align = segment.p_align(endian);
            let Ok(mut notes_in) = NoteIterator::<Header>::new(endian, align, &notes) else {
                continue;
            };
            while let Ok(Some(note)) = notes_in.next() {
                let desc = note.desc();
                if note.name() == b"Reprieve" && note.n_type(endian) == VERSION && desc.len() == 8 {
                    let at = desc.as_ptr().addr() - notes.as_ptr().addr();
                    let from = address.wrapping_add(at as u64);
                    return Some(from.wrapping_add(u64_at(desc, 0)));
                }
            }
        }
        None
    }

    pub fn layout(&mut self, address: u64) -> io::Result<Layout> {
        let bytes = self.bytes(address, DESCRIPTOR)?;
        let small = |index: usize| u32_at(&bytes, 32 + index * 4);
        let known = &bytes[..8] == b"Reprieve" && u32_at(&bytes, 8) == VERSION;
        if !known || u32_at(&bytes, 12) < DESCRIPTOR as u32 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Layout {
            registries: u64_at(&bytes, 16),
            cores: u64_at(&bytes, 24),
            domains: small(0).min(DOMAINS),
            registry_bytes: small(1),
            chunk_records: small(2),
            records: small(3),
            record_bytes: small(4),
            record_word: small(5),
            record_owner: small(6),
            record_snapshot: small(7),
            core_sequence: small(8),
            core_completed: small(9),
            core_since: small(10),
            core_lanes: small(11),
            lane_bytes: small(12),
            lane_registered: small(13),
            lane_finished: small(14),
        })
    }

    /// The first domains, so many.
    pub fn domains(&mut self, layout: &Layout, shown: usize) -> Vec<Domain> {
        let Ok(cores) = self.bytes(layout.cores, layout.domains as usize * 8) else {
            return Vec::new();
        };
        let (mut domains, mut room) = (Vec::new(), LAGGARDS);
        for index in 0..layout.domains {
            if domains.len() == shown {
                break;
            }
            let core = u64_at(&cores, index as usize * 8);
            // While a domain comes or goes its place is reserved by a small number.
            if core < 4096 {
                continue;
            }
            match self.domain(layout, index, core, room) {
                Ok(domain) => {
                    room -= domain.laggards.len();
                    domains.push(domain);
                }
                // The domain has just gone, or is not what it says it is.
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => break,
                Err(_) => {}
            }
        }
        domains
    }

    /// With at most `laggards` of them.
    fn domain(
        &mut self,
        layout: &Layout,
        index: u32,
        core: u64,
        laggards: usize,
    ) -> io::Result<Domain> {
        let at = |offset: u32| core.wrapping_add(offset.into());
        let sequence = self.u64(at(layout.core_sequence))?;
        let since = self.u64(at(layout.core_since))?;
        let running = sequence % 2 == 1;
        let mut domain = Domain {
            index,
            grace_periods: self.u64(at(layout.core_completed))?,
            current_age_ns: running.then(|| now_ns().saturating_sub(since)),
            ..Domain::default()
        };
        let registry = u64::from(layout.registry_bytes) * u64::from(index);
        let registry = layout.registries.wrapping_add(registry);
        self.readers(layout, registry, running, laggards, &mut domain)?;
        let load = self.waiting(layout, at(layout.core_lanes))?;
        (domain.callbacks_waiting, domain.bytes_waiting) = (load & 0xffff_ffff, (load >> 32) * 16);
        Ok(domain)
    }

    /// The threads of a registry: chunks of records, each of which begins with the distance from
    /// itself to the next.
    fn readers(
        &mut self,
        layout: &Layout,
        registry: u64,
        running: bool,
        laggards: usize,
        domain: &mut Domain,
    ) -> io::Result<()> {
        let follow = |at: u64, distance: u64| (distance != 0).then(|| at.wrapping_add(distance));
        let mut next = follow(registry, self.u64(registry)?);
        let length = layout.records as usize * layout.record_bytes as usize;
        while let Some(chunk) = next {
            let distance = self.u64(chunk)?;
            let records = self.bytes(chunk.wrapping_add(layout.chunk_records.into()), length)?;
            for record in records.chunks_exact(layout.record_bytes.max(1) as usize) {
                let owner = u32_at(record, layout.record_owner as usize);
                if owner == 0 || owner == u32::MAX {
                    continue;
                }
                // A thread that has ended and leaked a guard.
                let (thread, left) = (owner & i32::MAX as u32, owner > i32::MAX as u32);
                let word = u64_at(record, layout.record_word as usize);
                let snapshot = u64_at(record, layout.record_snapshot as usize);
                let inside = word & 0xffff_ffff != 0;
                domain.threads += u32::from(!left);
                domain.readers += u32::from(inside);
                let waited_for = snapshot != 0 && snapshot >> 32 == word >> 32;
                if running && inside && waited_for && domain.laggards.len() < laggards {
                    domain.laggards.push(thread);
                }
            }
            next = follow(chunk, distance);
        }
        Ok(())
    }

    /// The load of a domain: what was registered less what was finished, of which the latter is
    /// read first.
    fn waiting(&mut self, layout: &Layout, lanes: u64) -> io::Result<u64> {
        let (address, count) = (self.u64(lanes)?, self.u64(lanes.wrapping_add(8))?);
        let mut sum = |offset: u32| -> io::Result<u64> {
            let mut sum = 0u64;
            for lane in 0..count {
                let place = lane.wrapping_mul(layout.lane_bytes.into()).wrapping_add(offset.into());
                let pair = self.bytes(address.wrapping_add(place), 16)?;
                sum = sum.wrapping_add(u64_at(&pair, 0)).wrapping_add(u64_at(&pair, 8));
            }
            Ok(sum)
        };
        let finished = sum(layout.lane_finished)?;
        Ok(sum(layout.lane_registered)?.wrapping_sub(finished))
    }
}

/// Zero where there is nothing.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at.saturating_add(8)).and_then(|b| b.try_into().ok());
    u64::from_ne_bytes(word.unwrap_or_default())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at.saturating_add(4)).and_then(|b| b.try_into().ok());
    u32::from_ne_bytes(word.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_cannot_fill_a_page_of_metrics() {
        // Any number of domains, all with the same core and the same 2000 laggards.
        const CORE: usize = 6100;
        let mut memory = vec![0u64; 8192];
        let start = memory.as_ptr().addr() as u64;
        let at = |word: usize| start + 8 * word as u64;
        // A registry, and its chunk behind it.
        memory[0] = 8;
        for record in memory[2..].chunks_exact_mut(3).take(2000) {
            record.copy_from_slice(&[1, 7, 1]);
        }
        memory[CORE] = 1;
        memory[CORE + 8..].fill(at(CORE));
        let layout = Layout {
            registries: start,
            cores: at(CORE + 8),
            domains: 2000,
            chunk_records: 8,
            records: 2000,
            record_bytes: 24,
            record_owner: 8,
            record_snapshot: 16,
            core_completed: 16,
            core_since: 8,
            core_lanes: 24,
            ..Layout::default()
        };
        let domains = Reader::new(std::process::id(), BUDGET).domains(&layout, SHOWN);
        assert_eq!((domains.len(), domains[SHOWN - 1].threads), (SHOWN, 2000));
        assert_eq!(domains.iter().map(|d| d.laggards.len()).sum::<usize>(), LAGGARDS);
    }

    #[test]
    fn a_lying_process_is_read_within_bounds() {
        // Chunks at odd places, in a table that says there are thousands of domains.
        let mut memory = vec![0u64; 8192];
        let start = memory.as_ptr().addr() as u64;
        memory[0] = 64;
        let layout = Layout {
            registries: start,
            cores: start + 1024,
            domains: u32::MAX,
            chunk_records: 8,
            records: 1,
            record_word: u32::MAX,
            ..Layout::default()
        };
        let reader = || Reader::new(std::process::id(), BUDGET);
        for distance in [8u64, 0u64.wrapping_sub(8), u64::MAX] {
            memory[8] = distance;
            memory[128..].fill(start);
            let _ = reader().domains(&layout, SHOWN);
            let _ = reader().readers(&layout, start, true, LAGGARDS, &mut Domain::default());
            let _ = reader().waiting(&layout, start);
        }
        // Two chunks that name each other as the next one.
        (memory[8], memory[9]) = (8, 0u64.wrapping_sub(8));
        let mut bounded = reader();
        let error =
            bounded.readers(&layout, start, true, LAGGARDS, &mut Domain::default()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert!(bounded.left < PRICE, "the budget is used up, and nothing was read beyond it");
        assert!(reader().layout(start).is_err());
        assert_eq!(reader().descriptor(start), None);
        assert_eq!(reader().descriptor(8), None);
    }
}
