// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a VM to its kernel.
//!
//! Candidates for VMCOREINFO are found by their first bytes. Each is tried with each possible
//! layout of RAM, and believed if these checks pass: its page tables map themselves to the address
//! that it gives, the running kernel's release is the one it gives, every symbol that it gives has
//! the same address in the symbol table, and the kernel's own pointer to VMCOREINFO leads back to
//! it. A page left from an earlier boot fails, because its page tables were overwritten. If it
//! passes nevertheless (after kexec), the kernel whose clock advances is the running one.

use super::{Guest, Pulse};
use crate::error::{Error, Result};
use crate::kernel::btf::Btf;
use crate::kernel::symbols::Symbols;
use crate::kernel::types::Types;
use crate::kernel::vmcoreinfo::{self, VmCoreInfo};
use crate::kernel::{Kernel, kallsyms};
use crate::memory::{Memory, Physical, ProcessRam, scan, segment_of};
use crate::rcu::map::RcuMap;
use crate::state::clock::Clock;
use crate::state::modules::Cache;
use crate::state::spins;
use crate::state::task::TaskOffsets;
use crate::state::vcpu::Cpus;
use crate::vmm::{Segment, Vm};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long memory is searched for candidates. A process may map much more than there is.
const SEARCH: Duration = Duration::from_secs(300);

/// How long candidates are tried. A guest may make up hundreds, each with a large symbol table, and
/// must not take more of its host's CPU time.
const TRY: Duration = Duration::from_secs(10);

/// How long several kernels are watched to find the one that runs. An idle kernel ticks at least
/// once a second.
const WATCH: Duration = Duration::from_millis(2500);

/// Consistent kernels that are kept, at most: each with its VMCOREINFO. A guest can make up as many
/// as are tried.
const KERNELS_MAX: usize = 64;

/// RAM that the firmware keeps at the end of a stretch of it, at most.
const FIRMWARE_MAX: u64 = 64 << 20;

/// A kernel whose parts are consistent. It may not be the one that runs.
struct Found {
    memory: Memory,
    info: VmCoreInfo,
    info_address: u64,
    /// `None` if other kernels were found after this one. A guest can make up many of them, so only
    /// the table of the last one is kept.
    symbols: Option<Symbols>,
    jiffies: u64,
}

/// Adds a layer between a guest's memory and its readers.
pub type Through<'a> = dyn Fn(Arc<dyn Physical>) -> Arc<dyn Physical> + 'a;

/// How to attach.
#[derive(Default)]
pub struct Options<'a> {
    /// A layer between the guest's memory and its readers, to record or damage what is read. The
    /// search for the kernel does not go through it.
    pub through: Option<&'a Through<'a>>,
    /// Gives up soon after this is set, with [`Error::Stopped`].
    pub stop: Option<&'a AtomicBool>,
    /// Does without the search that comes last: of memory that the host has swapped out, which it
    /// then reads in.
    pub resident_only: bool,
    /// The CPU time of threads that search memory is added, nanoseconds.
    pub spent_ns: AtomicU64,
}

impl Options<'_> {
    fn check(&self) -> Result<()> {
        check(self.stop)
    }
}

fn check(stop: Option<&AtomicBool>) -> Result<()> {
    match stop {
        Some(stop) if stop.load(Ordering::Relaxed) => Err(Error::Stopped),
        _ => Ok(()),
    }
}

impl Guest {
    /// Finds the kernel that runs in `vm`. Takes well under a second for some GiB of used memory.
    ///
    /// # Errors
    /// [`Error::NoKernel`], [`Error::NoTypes`], [`Error::Encrypted`], [`Error::Unsupported`],
    /// [`Error::Corrupt`], [`Error::Permission`], [`Error::Gone`].
    pub fn attach(vm: &Vm) -> Result<Guest> {
        Guest::attach_with(vm, &Options::default())
    }

    /// As [`Guest::attach`], with `options`.
    ///
    /// # Errors
    /// Those, and [`Error::Stopped`].
    pub fn attach_with(vm: &Vm, options: &Options) -> Result<Guest> {
        if let Some(how) = &vm.encrypted {
            return Err(Error::Encrypted { how: how.clone() });
        }
        let (stop, start) = (options.stop, Instant::now());
        let check = || match start.elapsed() {
            long if long > SEARCH => {
                let reason = format!("it was searched for {SEARCH:?}");
                Err(Error::NoKernel { reason, whole: false })
            }
            _ => check(stop),
        };
        let mut scanned =
            scan::pages(vm.pid, &vm.memory, vmcoreinfo::MARK, false, &check, &options.spent_ns)?;
        let (mut found, mut why) = kernels(vm, &scanned.found, options)?;
        let mut whole = false;
        if found.is_empty() && scanned.swapped > 0 && !options.resident_only {
            whole = true;
            scanned =
                scan::pages(vm.pid, &vm.memory, vmcoreinfo::MARK, true, &check, &options.spent_ns)?;
            (found, why) = kernels(vm, &scanned.found, options)?;
        }
        let Some(found) = running(found, options)? else {
            let mib = scanned.read * 4 / 1024;
            let reason = match why {
                Some(why) => format!("a page looks like VMCOREINFO, but {why}"),
                None => format!("no VMCOREINFO in {mib} MiB of used memory"),
            };
            let reason = match scanned.swapped * 4 / 1024 {
                swapped if swapped > 0 && options.resident_only => {
                    format!("{reason}; {swapped} MiB that are swapped out were not searched")
                }
                _ => reason,
            };
            return Err(Error::NoKernel { reason, whole });
        };
        Guest::new(vm, found)
    }

    fn new(vm: &Vm, found: Found) -> Result<Guest> {
        let Found { memory, info, info_address, symbols, jiffies } = found;
        let symbols = symbols.map_or_else(|| kallsyms::read(&memory, &info), Ok)?;
        let types = types(&memory, &symbols, &info)?;
        let vm = Vm { memory: memory.segments().to_vec(), alternatives: Vec::new(), ..vm.clone() };
        let kernel = Kernel::new(memory, info, symbols, types)?;
        let modules = Cache::default();
        // Without the symbol it is a kernel for one CPU.
        let tree_rcu = kernel.symbols.get("rcu_state").is_some();
        let mut guest = Guest {
            vm,
            info_address,
            direct_map: direct_map(&kernel)?,
            cpus: Cpus::new(&kernel)?,
            tasks: TaskOffsets::new(&kernel.types)?,
            rcu: tree_rcu.then(|| RcuMap::new(&kernel)).transpose()?,
            clock: Clock::new(&kernel, jiffies)?,
            boot: 0,
            pulse: Mutex::new(Pulse::default()),
            modules_bytes: modules.bytes.clone(),
            modules: Mutex::new(modules),
            spins: spins::code(&kernel),
            kernel,
        };
        guest.boot = guest.fingerprint()?;
        guest.beat()?;
        Ok(guest)
    }
}

/// The kernel's types.
fn types(memory: &Memory, symbols: &Symbols, info: &VmCoreInfo) -> Result<Types> {
    let missing = || Error::NoTypes { release: info.release().into() };
    let start = symbols.get("__start_BTF").ok_or_else(missing)?;
    let end = symbols.get("__stop_BTF").map(|s| s.address);
    Ok(Types::new(Btf::read(memory, start.address, end)?))
}

/// First address of the map of all RAM.
fn direct_map(kernel: &Kernel) -> Result<u64> {
    match kernel.symbols.get("page_offset_base") {
        Some(base) => kernel.memory.u64(base.address),
        None if kernel.memory.page_tables().five_levels => Ok(0xff11_0000_0000_0000),
        None => Ok(0xffff_8880_0000_0000),
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// The consistent kernels, each with the best layout of RAM, and what is wrong with another.
/// `pages`: addresses in the VMM.
fn kernels(vm: &Vm, pages: &[u64], options: &Options) -> Result<(Vec<Found>, Option<Error>)> {
    let mut rams: Vec<Arc<dyn Physical>> = Vec::new();
    for layout in std::iter::once(&vm.memory).chain(&vm.alternatives) {
        let ram: Arc<dyn Physical> = Arc::new(ProcessRam::open(vm, layout.clone())?);
        rams.push(options.through.map_or(ram.clone(), |through| through(ram)));
    }
    let mut kernels = Vec::new();
    let (mut wrong, start) = (None, cpu_time());
    for &page in pages {
        let mut best: Option<Found> = None;
        for ram in &rams {
            options.check()?;
            if cpu_time() - start > TRY {
                break;
            }
            match kernel(ram, page) {
                Ok((found, fits)) => {
                    if fits || best.is_none() {
                        best = Some(found);
                    }
                    if fits {
                        break;
                    }
                }
                Err(e @ (Error::Gone { .. } | Error::Permission { .. })) => {
                    return Err(e);
                }
                // The first layout is the likeliest.
                Err(e) => wrong = wrong.or(Some(e)),
            }
        }
        if let Some(best) = best {
            kernels.iter_mut().for_each(|earlier: &mut Found| earlier.symbols = None);
            kernels.truncate(KERNELS_MAX - 1);
            kernels.push(best);
        }
    }
    match wrong {
        // A kernel that is too old says what to do.
        Some(e @ Error::Unsupported { .. }) if kernels.is_empty() => Err(e),
        wrong => Ok((kernels, wrong)),
    }
}

/// The kernel whose VMCOREINFO is at `page` in the VMM, and whether the layout of RAM fits it.
fn kernel(ram: &Arc<dyn Physical>, page: u64) -> Result<(Found, bool)> {
    let here = |s: &&Segment| (s.hva..s.hva.saturating_add(s.len)).contains(&page);
    let segment = ram.segments().iter().find(here).ok_or(Error::NotRam { address: page })?;
    let info_address = segment.gpa + (page - segment.hva);
    let mut text = vec![0; vmcoreinfo::LEN];
    ram.read(info_address, &mut text)?;
    let info = VmCoreInfo::parse(&text)?;
    let tables = info.tables()?;
    let memory = Memory::new(ram.clone(), tables);
    let corrupt = |detail: &str| Error::corrupt("VMCOREINFO", detail);
    if memory.translate(info.page_table()?)? != tables.root {
        return Err(corrupt("its page table is not where it says"));
    }
    if let Some(names) = info.symbol("init_uts_ns") {
        let area = memory.bytes(names, 1024)?;
        let release = info.get("OSRELEASE").unwrap_or_default().as_bytes();
        if !area.windows(release.len()).any(|w| w == release) {
            return Err(corrupt("it is of another kernel"));
        }
    }
    let symbols = kallsyms::read(&memory, &info)?;
    if let Some(pointer) = symbols.get("vmcoreinfo_data") {
        if memory.translate(memory.u64(pointer.address)?)? != info_address {
            return Err(corrupt("it is a copy"));
        }
    }
    let jiffies = symbols.address("jiffies_64").or_else(|_| symbols.address("jiffies"))?;
    let fits = fits(&memory, &symbols);
    Ok((Found { memory, info, info_address, symbols: Some(symbols), jiffies }, fits))
}

/// Whether the layout of RAM agrees with the end of RAM below 4 GiB and above as the kernel knows
/// them from its firmware.
fn fits(memory: &Memory, symbols: &Symbols) -> bool {
    let value = |name: &str| {
        let pages = memory.u64(symbols.get(name)?.address).ok()?;
        pages.checked_mul(4096)
    };
    let (Some(low), Some(all)) = (value("max_low_pfn"), value("max_pfn")) else { return false };
    let segments = memory.segments();
    let end_at = |limit: u64| segments.iter().map(Segment::end).filter(|&end| end <= limit).max();
    let near = |end: u64, known: u64| end >= known && end - known <= FIRMWARE_MAX;
    let four_gib = 1 << 32;
    let below = end_at(four_gib).unwrap_or(0);
    // All RAM below 4 GiB is one stretch to the kernel, even if it is plugged in pieces.
    segment_of(segments, 0).is_some()
        && near(below, low.min(four_gib))
        && near(end_at(u64::MAX).unwrap_or(0), all)
}

/// The kernel that runs, of several in memory.
fn running(mut found: Vec<Found>, options: &Options) -> Result<Option<Found>> {
    if found.len() > 1 {
        let clock = |f: &Found| f.memory.u64(f.jiffies).ok();
        let before: Vec<Option<u64>> = found.iter().map(clock).collect();
        let start = Instant::now();
        while start.elapsed() < WATCH {
            options.check()?;
            std::thread::sleep(Duration::from_millis(20));
            let moved = found.iter().zip(&before).position(|(f, b)| b.is_some() && clock(f) > *b);
            if let Some(index) = moved {
                return Ok(Some(found.swap_remove(index)));
            }
        }
    }
    Ok(found.into_iter().next())
}
