// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding pages by how they begin, without touching memory that the guest has not touched.
//!
//! Reading a page that does not exist yet would make it exist, and a VM of 5 GiB that uses 300 MiB
//! would grow. So the host's page tables are asked first (`/proc/PID/pagemap`), and only pages that
//! exist are read, a few bytes each, a thousand per system call. Pages that the host has swapped
//! out come last, only when asked for.

use super::raw;
use crate::error::{Error, Result};
use crate::vmm::{Segment, process};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of an entry of pagemap.
const EXISTS: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Pages looked up in pagemap at once: 64 MiB of guest memory.
const WINDOW: u64 = 16384;

/// Pages per system call.
const BATCH: usize = 1024;

/// Found pages that are kept. A guest could write the mark everywhere, and so could any program in
/// it, to hide the guest: so many are kept that this takes it 256 MiB.
const FOUND_MAX: usize = 1 << 16;

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Addresses, in the VMM, of the pages that begin with the mark.
    pub found: Vec<u64>,
    /// Pages read, 4 KiB each.
    pub read: u64,
    /// Pages passed over because they are swapped out.
    pub swapped: u64,
}

/// Finds the pages of process `pid` in `segments` that begin with `mark`. With `swapped_too`, has
/// the host read in what it swapped out. An error of `check`, which is called now and then, ends
/// it. Adds the CPU time of its threads to `spent_ns`.
///
/// # Errors
/// [`Error::Permission`], [`Error::Gone`].
pub fn pages<const WIDTH: usize>(
    pid: u32,
    segments: &[Segment],
    mark: &[u8; WIDTH],
    swapped_too: bool,
    check: &(dyn Fn() -> Result<()> + Sync),
    spent_ns: &AtomicU64,
) -> Result<Scan> {
    let path = format!("/proc/{pid}/pagemap");
    let pagemap = match File::open(&path) {
        // Some kernels have no such file.
        Err(_) if process::start_time(pid).is_none() => return Err(Error::Gone { pid }),
        opened => opened.map_err(Error::io(path))?,
    };
    let windows = || segments.iter().flat_map(windows);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(4);
    let scan = |lane: usize| -> Result<Scan> {
        let _spent = Spent(spent_ns);
        let mut lane_scan = Scan::default();
        for (start, count) in windows().skip(lane).step_by(threads) {
            check()?;
            window(pid, &pagemap, start, count, mark, swapped_too, &mut lane_scan)?;
        }
        Ok(lane_scan)
    };
    let lanes: Vec<Result<Scan>> = std::thread::scope(|scope| {
        let scan = &scan;
        let handles: Vec<_> = (0..threads).map(|lane| scope.spawn(move || scan(lane))).collect();
        // A panic of a lane is a bug and goes on as one.
        handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    });
    let mut all = Scan::default();
    for lane in lanes {
        let lane = lane?;
        all.found.extend(lane.found);
        all.read += lane.read;
        all.swapped += lane.swapped;
    }
    all.found.sort_unstable();
    all.found.truncate(FOUND_MAX);
    Ok(all)
}

/// Adds the CPU time of a thread that ends.
struct Spent<'a>(&'a AtomicU64);

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let ns = spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64;
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Size of a page of this host.
fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Address and number of pages of the pieces of a segment.
fn windows(segment: &Segment) -> impl Iterator<Item = (u64, u64)> {
    let (start, pages) = (segment.hva, segment.len / page_size());
    (0..pages.div_ceil(WINDOW)).map(move |index| {
        let first = index * WINDOW;
        (start + first * page_size(), WINDOW.min(pages - first))
    })
}

fn window<const WIDTH: usize>(
    pid: u32,
    pagemap: &File,
    start: u64,
    count: u64,
    mark: &[u8; WIDTH],
    swapped_too: bool,
    scan: &mut Scan,
) -> Result<()> {
    let size = page_size();
    let mut entries = vec![0; count as usize * 8];
    match pagemap.read_exact_at(&mut entries, start / size * 8) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(Error::Gone { pid }),
        Err(e) => return Err(Error::io(format!("/proc/{pid}/pagemap"))(e)),
    }
    let mut pages = Vec::with_capacity(BATCH);
    for (index, entry) in entries.chunks_exact(8).enumerate() {
        let entry = u64::from_le_bytes(entry.try_into().unwrap_or_default());
        let wanted = entry & EXISTS != 0 || (swapped_too && entry & SWAPPED != 0);
        scan.swapped += u64::from(entry & SWAPPED != 0);
        if wanted {
            pages.push(start + index as u64 * size);
        }
    }
    for batch in pages.chunks(BATCH) {
        starts(pid, batch, mark, scan)?;
    }
    Ok(())
}

fn starts<const WIDTH: usize>(
    pid: u32,
    mut pages: &[u64],
    mark: &[u8; WIDTH],
    scan: &mut Scan,
) -> Result<()> {
    let mut starts = vec![[0; WIDTH]; pages.len()];
    while !pages.is_empty() {
        let done = match raw::read_starts(pid, pages, &mut starts) {
            Ok(done) => done,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(Error::Gone { pid }),
            // The page went away since it was looked up.
            Err(e) if e.raw_os_error() == Some(libc::EFAULT) => 0,
            Err(e) => return Err(Error::io(format!("memory of process {pid}"))(e)),
        };
        let found = pages.iter().zip(&starts[..done]).filter(|(_, start)| *start == mark);
        for (page, _) in found {
            if scan.found.len() < FOUND_MAX {
                scan.found.push(*page);
            }
        }
        scan.read += done as u64;
        // If nothing was read, the first page cannot be: skip it.
        pages = pages.get(done.max(1)..).unwrap_or_default();
    }
    Ok(())
}
