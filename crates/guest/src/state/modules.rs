// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loaded modules of the guest's kernel, and their symbols.
//!
//! `modules` is the head of a list of `struct module`. Modules come and go while it is read; the
//! walk ends at the first entry that cannot be read.

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::kernel::symbols::{Builder, Resolved, Symbols};
use crate::kernel::types::Types;
use crate::memory::printable;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Entries of the list that are looked at.
const MODULES_MAX: usize = 4096;

/// Symbol tables of all modules, bytes: entries and names.
const SYMBOLS_MAX: u64 = 32 << 20;

/// Longest name of a symbol.
const NAME_MAX: usize = 1024;

/// Longest name of a module with its end (`MODULE_NAME_LEN`).
const MODULE_NAME_MAX: u64 = 64;

/// Largest area of a module.
const AREA_MAX: u64 = 1 << 30;

/// Bytes of an ELF symbol.
const ELF_SYMBOL: u64 = 24;

/// How soon the list is read again because an address was in no module: if it begins with another
/// module, and if not. Code that belongs to no module (eBPF programs) is common. After a slow
/// reading the pause is at least so many times as long.
const REFRESH: Duration = Duration::from_secs(1);
const REFRESH_SAME: Duration = Duration::from_secs(30);
const REST: u32 = 20;

/// A loaded module.
#[derive(Clone, Debug)]
pub struct Module {
    pub name: String,
    /// Kernel addresses of its code and data.
    pub ranges: Vec<Range<u64>>,
    /// In the order of `/proc/kallsyms`.
    pub symbols: Arc<Symbols>,
}

/// The modules when they were last read.
#[derive(Default)]
pub(crate) struct Cache {
    modules: Vec<Arc<Module>>,
    /// Memory that the modules' symbols take. Shared, since whoever reads the list may be slow.
    pub bytes: Arc<AtomicUsize>,
    /// When, how long it took, and the first entry of the list then: new modules come first.
    read: Option<(Instant, Duration, u64)>,
    /// `Some(None)`: this kernel has none.
    offsets: Option<Option<Offsets>>,
}

/// Offsets in `struct module`. Looked up once and not for each module: a guest's types may have so
/// many fields that it takes long.
struct Offsets {
    list: u64,
    state: u64,
    /// `None`: this kernel's modules cannot be read.
    contents: Option<Contents>,
}

struct Contents {
    name: u64,
    name_bytes: u64,
    /// Base and size of each area.
    areas: Vec<(u64, u64)>,
    symbols: Option<SymbolOffsets>,
}

struct SymbolOffsets {
    kallsyms: u64,
    /// In `struct mod_kallsyms`.
    num_symtab: u64,
    symtab: u64,
    typetab: u64,
    strtab: u64,
}

impl Offsets {
    fn new(types: &Types) -> Result<Offsets> {
        Ok(Offsets {
            list: types.offset_of("module", "list")?,
            state: types.offset_of("module", "state")?,
            contents: Contents::new(types).ok(),
        })
    }
}

impl Contents {
    fn new(types: &Types) -> Result<Contents> {
        let offset = |path: &str| types.offset_of("module", path);
        let name = types.field("module", "name")?;
        let areas = match types.field("module", "mem") {
            Ok(all) => {
                let one = all.size / all.elements.max(1);
                let (base, size) = (offset("mem.base")?, offset("mem.size")?);
                (0..all.elements.min(16)).map(|n| (base + n * one, size + n * one)).collect()
            }
            // Until 6.3.
            Err(_) => vec![
                (offset("core_layout.base")?, offset("core_layout.size")?),
                (offset("init_layout.base")?, offset("init_layout.size")?),
            ],
        };
        let symbols = SymbolOffsets::new(types).ok();
        Ok(Contents { name: name.offset, name_bytes: name.size, areas, symbols })
    }
}

impl SymbolOffsets {
    fn new(types: &Types) -> Result<SymbolOffsets> {
        let field = |name: &str| types.offset_of("mod_kallsyms", name);
        Ok(SymbolOffsets {
            kallsyms: types.offset_of("module", "kallsyms")?,
            num_symtab: field("num_symtab")?,
            symtab: field("symtab")?,
            typetab: field("typetab")?,
            strtab: field("strtab")?,
        })
    }
}

/// The loaded modules, in the order of the kernel's list (the latest first). A module that cannot
/// be read (it is being unloaded) is left out.
pub(crate) fn loaded(kernel: &Kernel) -> Result<Vec<Arc<Module>>> {
    listed(kernel, &Offsets::new(&kernel.types)?)
}

fn listed(kernel: &Kernel, offsets: &Offsets) -> Result<Vec<Arc<Module>>> {
    let head = kernel.symbols.address("modules")?;
    let (mut modules, mut seen) = (Vec::new(), HashSet::new());
    let mut at = kernel.memory.u64(head)?;
    let mut budget = SYMBOLS_MAX;
    // Entries are counted, not modules: the list may be a circle of such as are left out.
    for _ in 0..MODULES_MAX {
        if at == head || !seen.insert(at) {
            break;
        }
        match Module::read(kernel, offsets, at.wrapping_sub(offsets.list), &mut budget) {
            Ok(module) => modules.extend(module.map(Arc::new)),
            Err(e @ Error::Gone { .. }) => return Err(e),
            Err(_) => {}
        }
        match kernel.memory.u64(at) {
            Ok(next) => at = next,
            Err(_) => break,
        }
    }
    Ok(modules)
}

impl Module {
    /// The module whose `struct module` is at `address`; `None` if it is not yet in use, or no
    /// longer. `budget`: bytes of symbols that may still be read.
    fn read(
        kernel: &Kernel,
        offsets: &Offsets,
        address: u64,
        budget: &mut u64,
    ) -> Result<Option<Module>> {
        let memory = &kernel.memory;
        let at = |offset: u64| address.wrapping_add(offset);
        // MODULE_STATE_LIVE, COMING, GOING, UNFORMED: /proc/kallsyms shows all but the last.
        if memory.u32(at(offsets.state))? == 3 {
            return Ok(None);
        }
        let unknown = || Error::NoType { name: "module".into() };
        let contents = offsets.contents.as_ref().ok_or_else(unknown)?;
        let name_bytes = contents.name_bytes.min(MODULE_NAME_MAX) as usize;
        let name = memory.string(at(contents.name), name_bytes)?;
        let mut ranges = Vec::new();
        for &(base, size) in &contents.areas {
            let (base, size) = (memory.u64(at(base))?, u64::from(memory.u32(at(size))?));
            if base != 0 && size != 0 && size <= AREA_MAX {
                ranges.push(base..base.saturating_add(size));
            }
        }
        let table = contents.symbols.as_ref();
        let symbols = table.and_then(|table| symbols(kernel, table, address, budget).ok());
        Ok(Some(Module { name, ranges, symbols: Arc::new(symbols.unwrap_or_default()) }))
    }
}

/// The symbols of the module whose `struct module` is at `module`.
fn symbols(
    kernel: &Kernel,
    offsets: &SymbolOffsets,
    module: u64,
    budget: &mut u64,
) -> Result<Symbols> {
    let memory = &kernel.memory;
    let table = memory.u64(module.wrapping_add(offsets.kallsyms))?;
    let field = |offset: u64| table.wrapping_add(offset);
    let mut take = |bytes: u64| match budget.checked_sub(bytes) {
        Some(left) => {
            *budget = left;
            Ok(bytes as usize)
        }
        None => Err(Error::corrupt("modules", "more symbols than any kernel has")),
    };
    let count = u64::from(memory.u32(field(offsets.num_symtab))?);
    let entries = memory.bytes(memory.u64(field(offsets.symtab))?, take(count * ELF_SYMBOL)?)?;
    let kinds = memory.bytes(memory.u64(field(offsets.typetab))?, take(count)?)?;
    let entries = entries.chunks_exact(ELF_SYMBOL as usize);
    // All but the last name in one piece: where that one ends is not known.
    let strings = memory.u64(field(offsets.strtab))?;
    let last = entries.clone().map(name_offset).max().unwrap_or(0);
    let mut names = memory.bytes(strings, take(last.into())?)?;
    names.extend(memory.string(strings.wrapping_add(last.into()), NAME_MAX)?.as_bytes());
    let mut builder = Builder::default();
    for (entry, &kind) in entries.zip(&kinds) {
        let rest = names.get(name_offset(entry) as usize..).unwrap_or_default();
        let rest = &rest[..rest.len().min(NAME_MAX)];
        let name = rest.split(|&b| b == 0).next().unwrap_or_default();
        let address =
            entry.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        // The kernel does not show nameless ones either.
        if !name.is_empty() {
            // Entries may share names.
            take(name.len() as u64)?;
            builder.push(address, kind, &printable(name));
        }
    }
    Ok(builder.finish())
}

impl Cache {
    /// The symbol of a loaded module that `address` belongs to. Reads the list of modules again if
    /// no module has the address.
    pub fn resolve(&mut self, kernel: &Kernel, address: u64) -> Option<Resolved> {
        let find = |modules: &[Arc<Module>]| {
            let module = modules.iter().find(|m| m.ranges.iter().any(|r| r.contains(&address)))?;
            let found = module.symbols.resolve(address);
            // A symbol in another area of the module does not cover the address.
            let area = module.ranges.iter().find(|r| r.contains(&address))?;
            let found = found.filter(|f| area.contains(&(address - f.offset)));
            let unnamed =
                || Resolved { name: "?".into(), offset: address - area.start, module: None };
            Some(Resolved { module: Some(module.name.clone()), ..found.unwrap_or_else(unnamed) })
        };
        if let Some(found) = find(&self.modules) {
            return Some(found);
        }
        let head = kernel.symbols.address("modules").ok()?;
        let first = kernel.memory.u64(head).ok()?;
        let recent = |(at, took, old): (Instant, Duration, u64)| {
            let pause = if first == old { REFRESH_SAME } else { REFRESH };
            at.elapsed() < pause.max(took * REST)
        };
        if self.read.is_some_and(recent) {
            return None;
        }
        let start = Instant::now();
        let offsets = self.offsets.get_or_insert_with(|| Offsets::new(&kernel.types).ok());
        let modules = offsets.as_ref().and_then(|offsets| listed(kernel, offsets).ok());
        self.read = Some((Instant::now(), start.elapsed(), first));
        self.modules = modules?;
        let bytes = self.modules.iter().map(|module| module.symbols.bytes()).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        find(&self.modules)
    }
}

fn name_offset(entry: &[u8]) -> u32 {
    entry.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::btf::Btf;
    use crate::kernel::types::Types;
    use crate::kernel::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
    use crate::memory::paging::PageTables;
    use crate::memory::testing::Image;
    use crate::memory::{Memory, Physical};
    use crate::vmm::Segment;

    /// Counts reads.
    struct Counted(Image, AtomicUsize);

    impl Physical for Counted {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.read(address, buffer)
        }

        fn segments(&self) -> &[Segment] {
            self.0.segments()
        }
    }

    /// A kernel whose list of modules has one entry, in `state`, that is followed by itself.
    fn circle(state: u32) -> (Kernel, Arc<Counted>) {
        let mut image = vec![0; 0x6000];
        let mut put =
            |at: usize, value: u64| image[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0x1000 + 8 * 511, 0x2000 | 1);
        put(0x2000 + 8 * 510, 0x3000 | 1);
        // A page of 2 MiB.
        put(0x3000, 0x81);
        put(0x4000, KERNEL_BASE + 0x5008);
        put(0x5000, state.into());
        put(0x5008, KERNEL_BASE + 0x5008);
        let tables = PageTables { root: 0x1000, five_levels: false, ignore: 0 };
        let image = Arc::new(Counted(Image::new(image), AtomicUsize::new(0)));
        let memory = Memory::new(image.clone(), tables);

        let strings = b"\0u32\0list_head\0next\0module\0state\0list\0";
        let name = |name: &str| {
            let at = strings.windows(name.len()).position(|w| w == name.as_bytes());
            at.unwrap() as u32
        };
        let (number, structure) = (1 << 24, 4 << 24);
        let types = [
            vec![name("u32"), number, 4, 32],
            vec![name("list_head"), structure | 1, 16, name("next"), 1, 0],
            vec![name("module"), structure | 2, 64, name("state"), 1, 0, name("list\0"), 2, 64],
        ]
        .concat();
        let sections = [0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
        let words = [0x1_eb9f, 24].into_iter().chain(sections).chain(types);
        let mut btf: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        btf.extend(strings);

        let mut symbols = Builder::default();
        for (offset, name) in [(0, "_text"), (0x4000, "modules"), (0x6000, "_end")] {
            symbols.push(KERNEL_BASE + offset, b'T', name);
        }
        let info = VmCoreInfo::parse(b"OSRELEASE=6.12.0\n").unwrap();
        let types = Types::new(Btf::parse(&btf).unwrap());
        (Kernel::new(memory, info, symbols.finish(), types).unwrap(), image)
    }

    #[test]
    fn a_list_that_never_comes_back_to_its_head_ends() {
        // Not yet in use, and one that cannot be read: these types give it no name.
        for state in [3, 0] {
            let (kernel, image) = circle(state);
            assert!(loaded(&kernel).unwrap().is_empty());
            let reads = image.1.load(Ordering::Relaxed);
            assert!(reads < 50, "each entry is read once, and not {reads} words");
        }
        assert!(Cache::default().resolve(&circle(3).0, KERNEL_BASE + 0x7000).is_none());
    }
}
