// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a guest that wants to do harm: no panic, no endless loop, no more memory than a bound,
//! whatever the bytes.
//!
//! Each parser first reads a sound table, so that the damaged ones start from something that gets
//! far; then many thousand damaged ones, the same in every run.

#[path = "hostile/corpus.rs"]
mod corpus;
#[path = "guests/random.rs"]
mod random;

use corpus::{Flat, IMAGE, LAYOUTS, Layout};
use random::Random;
use reprieve_guest::error::{Error, Result};
use reprieve_guest::kernel::btf::Btf;
use reprieve_guest::kernel::vmcoreinfo::VmCoreInfo;
use reprieve_guest::kernel::{Reader, kallsyms};
use reprieve_guest::memory::paging::PageTables;
use reprieve_guest::memory::{Memory, Physical};
use reprieve_guest::vmm::Segment;
use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator, whose contract is the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        let used = USED.fetch_add(size.size(), Ordering::Relaxed) + size.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, size: Size) {
        USED.fetch_sub(size.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that all tests here may use at once.
const MEMORY_MAX: usize = 256 << 20;

fn bounded() {
    let peak = PEAK.load(Ordering::Relaxed);
    assert!(peak < MEMORY_MAX, "{} MiB", peak >> 20);
}

#[test]
fn kallsyms_in_every_layout() {
    for layout in LAYOUTS {
        let (image, text) = corpus::kallsyms(layout);
        let symbols = kallsyms::read(&Flat(image), &corpus::info(&text).unwrap()).unwrap();
        let expected = corpus::symbols(layout);
        assert_eq!(symbols.len(), expected.len());
        for (symbol, (address, kind, name)) in symbols.iter().zip(&expected) {
            assert_eq!(
                (symbol.address, symbol.kind, symbol.name),
                (*address, *kind, name.as_str()),
                "{layout:?}"
            );
        }
        let at = IMAGE + 0x100 + 16 * 7 + 3;
        assert_eq!(symbols.resolve(at).unwrap().to_string(), "function_number_7+0x3");
    }
}

#[test]
fn kallsyms_that_contradict_vmcoreinfo_are_refused() {
    let (image, text) = corpus::kallsyms(Layout::Relative);
    let moved = text.replace("SYMBOL(_stext)=ffffffff82000000", "SYMBOL(_stext)=ffffffff82000010");
    let error = kallsyms::read(&Flat(image.clone()), &corpus::info(&moved).unwrap()).unwrap_err();
    assert!(error.to_string().contains("1 of 2 addresses"), "{error}");
    let old = text.replace("kallsyms_num_syms", "other");
    let error = kallsyms::read(&Flat(image), &corpus::info(&old).unwrap()).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("Linux 6.0"),
        "{error}"
    );
}

#[test]
fn damaged_kallsyms() {
    let mut random = Random::new(1);
    let mut read = 0;
    for round in 0..20_000 {
        let (mut image, text) = corpus::kallsyms(LAYOUTS[round % LAYOUTS.len()]);
        let mut text = text.into_bytes();
        match round % 3 {
            0 => random.damage(&mut text),
            _ => random.damage(&mut image),
        }
        let Ok(info) = VmCoreInfo::parse(&text) else { continue };
        if let Ok(symbols) = kallsyms::read(&Flat(image), &info) {
            read += 1;
            symbols.resolve(random.next());
            assert!(symbols.iter().all(|s| s.name.bytes().all(|b| b.is_ascii_graphic())));
        }
    }
    assert!(read > 100, "only {read} were read: the damage is too great to get anywhere");
    bounded();
}

/// Kernel memory with names that have no end: each is two letters, and 32764 tokens that stand for
/// nothing.
struct Endless(AtomicUsize);

impl Endless {
    const INFO: &str = "OSRELEASE=6.1.0-test\nSYMBOL(kallsyms_num_syms)=ffffffff82000000\n\
        SYMBOL(kallsyms_token_table)=ffffffff82001000\nSYMBOL(kallsyms_token_index)=ffffffff82002000\n\
        SYMBOL(kallsyms_names)=ffffffff82008000\n";
    /// Bytes that may be read.
    const LIMIT: usize = 64 << 20;

    fn byte(address: u64) -> u8 {
        let offset = (address - IMAGE) as usize;
        let of = |bytes: &[u8], from: usize| bytes.get(offset - from).copied().unwrap_or(0);
        match offset {
            0..0x1000 => of(&(1u32 << 20).to_le_bytes(), 0),
            0x1000..0x2000 => of(b"\0T\0x\0", 0x1000),
            0x2000..0x8000 => of(&[0, 0, 1, 0, 3, 0], 0x2000),
            _ => match offset % 0x8000 {
                0 => 0xfe,
                1 => 0xff,
                2 => 1,
                3 => 2,
                _ => 0,
            },
        }
    }
}

impl Reader for Endless {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        if self.0.fetch_add(buffer.len(), Ordering::Relaxed) > Self::LIMIT {
            return Err(Error::NotMapped { address });
        }
        for (at, byte) in (address..).zip(buffer) {
            *byte = Self::byte(at);
        }
        Ok(())
    }
}

#[test]
fn names_of_empty_tokens_are_not_read_for_ever() {
    let info = VmCoreInfo::parse(Endless::INFO.as_bytes()).unwrap();
    let error = kallsyms::read(&Endless(AtomicUsize::new(0)), &info).unwrap_err();
    assert!(error.to_string().contains("more names than any kernel has"), "{error}");
}

#[test]
fn btf_says_what_the_source_says() {
    let btf = Btf::parse(&corpus::btf()).unwrap();
    let field = |structure: &str, path: &str| {
        btf.field(structure, path).map(|f| (f.offset, f.size, f.elements))
    };
    assert_eq!(field("list", "prev").unwrap(), (8, 8, 1));
    assert_eq!(field("outer", "name").unwrap(), (0, 16, 16));
    assert_eq!(field("outer", "links").unwrap(), (16, 96, 6));
    assert_eq!(field("outer", "links.prev").unwrap(), (24, 8, 1));
    assert_eq!(field("outer", "inner.whole").unwrap(), (112, 8, 1));
    assert_eq!(field("outer", "inner.flag").unwrap(), (116, 4, 1));
    assert_eq!(field("outer", "e").unwrap(), (120, 4, 1));
    assert_eq!((btf.size_of("outer").unwrap(), btf.len()), (128, 21));
    assert_eq!((btf.variable_size("counter"), btf.variable_size("int")), (Some(4), None));
    for (structure, path) in [
        ("outer", "nothing"),
        ("nothing", "name"),
        ("outer", "name.x"),
        ("outer", ""),
        ("int", "a"),
    ] {
        assert!(
            matches!(btf.field(structure, path), Err(Error::NoType { .. })),
            "{structure}.{path}"
        );
    }
}

#[test]
fn damaged_btf() {
    let mut random = Random::new(2);
    let sound = corpus::btf();
    let mut parsed = 0;
    for round in 0..100_000 {
        let mut bytes = sound.clone();
        random.damage(&mut bytes);
        let parse = match round % 2 {
            0 => Btf::parse(&bytes),
            _ => Btf::read(&Flat(bytes), IMAGE, (round % 4 == 1).then_some(IMAGE + 600)),
        };
        let Ok(btf) = parse else { continue };
        parsed += 1;
        for structure in ["list", "inner", "outer"] {
            for path in ["prev", "links.prev", "inner.flag", "whole", "e"] {
                let _ = btf.field(structure, path);
            }
        }
        let _ = btf.variable_size("counter");
    }
    assert!(parsed > 10_000, "only {parsed} were parsed: the damage is too great to get anywhere");
    bounded();
}

#[test]
fn types_that_go_in_circles_end() {
    // A typedef of itself, arrays of each other, and a structure that has itself many times without
    // a name.
    let mut types: Vec<u32> =
        vec![1, 8 << 24, 1, 0, 3 << 24, 0, 3, 1, u32::MAX, 0, 3 << 24, 0, 2, 1, u32::MAX];
    let members = 4000;
    types.extend([3, 4 << 24 | members, 8]);
    for _ in 0..members {
        types.extend([0, 4, 0]);
    }
    types.extend([5, 4 << 24 | 2, 8, 7, 1, 0, 9, 2, 0]);
    let types: Vec<u8> = types.iter().flat_map(|w| w.to_le_bytes()).collect();
    let strings = b"\0t\0s\0h\0a\0b\0";
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    let head = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
    bytes.extend(head.iter().flat_map(|w| w.to_le_bytes()));
    bytes.extend(&types);
    bytes.extend(strings);
    let btf = Btf::parse(&bytes).unwrap();
    for (structure, path) in [("s", "x"), ("h", "a"), ("h", "b"), ("h", "a.b")] {
        assert!(
            matches!(btf.field(structure, path), Err(Error::NoType { .. })),
            "{structure}.{path}"
        );
    }
}

#[test]
fn names_that_overlap_take_no_more_memory() {
    // Each structure's name is the rest of the strings, which have no end before the last byte.
    let count = 50_000u32;
    let strings = [vec![b'n'; 4 << 20], vec![0]].concat();
    let types: Vec<u32> = (0..count).flat_map(|n| [n + 1, 4 << 24, 0]).collect();
    let lens = [0, 4 * types.len() as u32, 4 * types.len() as u32, strings.len() as u32];
    let words = [0x1_eb9f, 24].into_iter().chain(lens).chain(types);
    let mut bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    bytes.extend(strings);
    let btf = Btf::parse(&bytes).unwrap();
    assert_eq!(btf.len(), count as usize + 1);
    assert!(matches!(btf.size_of("n"), Err(Error::NoType { .. })));
    assert!(btf.bytes() >= bytes.len() && btf.bytes() <= PEAK.load(Ordering::Relaxed));
    bounded();
}

#[test]
fn damaged_vmcoreinfo() {
    let mut random = Random::new(3);
    let sound = format!(
        "{}NUMBER(phys_base)=-2097152\nNUMBER(pgtable_l5_enabled)=1\nSYMBOL(swapper_pg_dir)=ffffffff82e10000\nKERNELOFFSET=1000000\n",
        corpus::kallsyms(Layout::Relative).1
    );
    assert!(corpus::info(&sound).unwrap().tables().is_ok());
    let mut parsed = 0;
    for _ in 0..100_000 {
        let mut bytes = sound.clone().into_bytes();
        random.damage(&mut bytes);
        if let Ok(info) = VmCoreInfo::parse(&bytes) {
            parsed += 1;
            assert!(info.release().len() <= 64 && !info.release().bytes().any(|b| b < b' '));
            let _ = (info.tables(), info.symbols().count());
        }
    }
    assert!(parsed > 10_000, "{parsed}");
}

/// RAM with holes, full of entries that mostly point into it.
struct Wild {
    bytes: Vec<u8>,
    segments: Vec<Segment>,
}

impl Physical for Wild {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        let inside =
            |s: &&Segment| address >= s.gpa && address + (buffer.len() as u64) <= s.gpa + s.len;
        let segment = self.segments.iter().find(inside).ok_or(Error::NotRam { address })?;
        let from = (segment.hva + address - segment.gpa) as usize;
        buffer.copy_from_slice(&self.bytes[from..from + buffer.len()]);
        Ok(())
    }

    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

#[test]
fn wild_page_tables() {
    let mut random = Random::new(4);
    let pages = 64;
    let mut mapped = 0;
    for round in 0..400 {
        let entry = |random: &mut Random| -> u64 {
            let page = random.below(pages + 8) as u64;
            let present = u64::from(random.below(8) != 0);
            let large = u64::from(random.below(4) == 0) << 7;
            match random.below(20) {
                0 => random.next(),
                _ => page << 12 | present | large,
            }
        };
        let bytes: Vec<u8> =
            (0..pages * 512).flat_map(|_| entry(&mut random).to_le_bytes()).collect();
        let segments = vec![
            Segment { gpa: 0, len: 32 << 12, hva: 0 },
            Segment { gpa: 40 << 12, len: 32 << 12, hva: 32 << 12 },
        ];
        let tables = PageTables {
            root: (random.below(72) as u64) << 12,
            five_levels: round % 2 == 0,
            ignore: if round % 5 == 0 { 1 << 47 } else { 0 },
        };
        let memory = Memory::new(Arc::new(Wild { bytes, segments }), tables);
        for _ in 0..200 {
            let address =
                random.next() | if random.below(2) == 0 { 0xffff_8000_0000_0000 } else { 0 };
            mapped += u32::from(memory.translate(address).is_ok());
            let mut buffer = vec![0; random.below(20_000)];
            let _ = memory.read_virtual(address, &mut buffer);
            let _ = memory.string(address, 300).map(|s| assert!(s.len() <= 300));
            let _ = memory.read_virtual(u64::MAX - random.below(100) as u64, &mut buffer);
        }
    }
    assert!(mapped > 1000, "{mapped}");
    bounded();
}
