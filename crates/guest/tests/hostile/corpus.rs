// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small but complete tables of kernels, in the formats of the kernel's own tools, and a memory
//! that holds them.

use reprieve_guest::error::{Error, Result};
use reprieve_guest::kernel::Reader;
use reprieve_guest::kernel::vmcoreinfo::VmCoreInfo;

pub const IMAGE: u64 = 0xffff_ffff_8200_0000;

/// Memory at [`IMAGE`].
pub struct Flat(pub Vec<u8>);

impl Reader for Flat {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        let from = address.checked_sub(IMAGE).and_then(|o| usize::try_from(o).ok());
        let part = from.and_then(|from| self.0.get(from..from.checked_add(buffer.len())?));
        buffer.copy_from_slice(part.ok_or(Error::NotMapped { address })?);
        Ok(())
    }
}

/// How a kernel keeps its symbols' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    AbsolutePercpu,
    Relative,
    PlaceRelative,
}

pub const LAYOUTS: [Layout; 3] = [Layout::AbsolutePercpu, Layout::Relative, Layout::PlaceRelative];

/// Symbols of a made-up kernel: address, type, name. One has a name of 300 bytes.
pub fn symbols(layout: Layout) -> Vec<(u64, char, String)> {
    let mut symbols = Vec::new();
    if layout == Layout::AbsolutePercpu {
        symbols.push((0, 'A', "__per_cpu_start".to_owned()));
        symbols.push((0x1fb40, 'A', "current_task".to_owned()));
    }
    symbols.push((IMAGE, 'T', "_stext".into()));
    for n in 0..300u64 {
        let kind = if n % 3 == 0 { 't' } else { 'T' };
        symbols.push((IMAGE + 0x100 + 16 * n, kind, format!("function_number_{n}")));
    }
    symbols.push((IMAGE + 0x20_0000, 'd', "x".repeat(300)));
    symbols.push((IMAGE + 0x20_1000, 'D', "init_uts_ns".into()));
    symbols.push((IMAGE + 0x20_2000, 'B', "_end".into()));
    symbols
}

/// kallsyms' tables in memory, and the VMCOREINFO that points to them.
pub fn kallsyms(layout: Layout) -> (Vec<u8>, String) {
    let symbols = symbols(layout);
    // Two tokens of several letters, as the compressor would make; the rest stand for themselves.
    let tokens: Vec<Vec<u8>> = (0..=255u8)
        .map(|b| match b {
            1 => b"function_".to_vec(),
            2 => b"number_".to_vec(),
            b'!'..=b'~' => vec![b],
            _ => b"unused".to_vec(),
        })
        .collect();
    let mut names = Vec::new();
    for (_, kind, name) in &symbols {
        let mut packed = vec![*kind as u8];
        let mut rest = name.as_str();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix("function_") {
                (packed, rest) = ([packed, vec![1]].concat(), after);
            } else if let Some(after) = rest.strip_prefix("number_") {
                (packed, rest) = ([packed, vec![2]].concat(), after);
            } else {
                packed.push(rest.as_bytes()[0]);
                rest = &rest[1..];
            }
        }
        if packed.len() > 0x7f {
            names.extend([(packed.len() & 0x7f) as u8 | 0x80, (packed.len() >> 7) as u8]);
        } else {
            names.push(packed.len() as u8);
        }
        names.extend(packed);
    }
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for token in &tokens {
        index.extend((table.len() as u16).to_le_bytes());
        table.extend(token);
        table.push(0);
    }
    let mut image = Vec::new();
    let mut text = format!(
        "OSRELEASE=6.1.0-test\nSYMBOL(_stext)={IMAGE:x}\nSYMBOL(init_uts_ns)={:x}\n",
        IMAGE + 0x20_1000
    );
    text += "SYMBOL(mem_section)=ff11000000001000\n";
    let mut put = |name: &str, bytes: &[u8]| {
        image.resize(image.len().next_multiple_of(8), 0);
        let at = IMAGE + image.len() as u64;
        image.extend(bytes);
        text += &format!("SYMBOL(kallsyms_{name})={at:x}\n");
        at
    };
    put("num_syms", &(symbols.len() as u32).to_le_bytes());
    put("names", &names);
    put("token_table", &table);
    put("token_index", &index);
    let base = IMAGE;
    let offsets = |of: &dyn Fn(usize, u64) -> i64| -> Vec<u8> {
        symbols
            .iter()
            .enumerate()
            .flat_map(|(i, (a, ..))| (of(i, *a) as i32).to_le_bytes())
            .collect()
    };
    match layout {
        Layout::AbsolutePercpu => {
            put("relative_base", &base.to_le_bytes());
            put(
                "offsets",
                &offsets(&|_, a| {
                    if a < 1 << 31 { a as i64 } else { base.wrapping_sub(1).wrapping_sub(a) as i64 }
                }),
            );
        }
        Layout::Relative => {
            put("relative_base", &base.to_le_bytes());
            put("offsets", &offsets(&|_, a| (a - base) as i64));
        }
        Layout::PlaceRelative => {
            // Where the table will be is known once everything before it is.
            let at = put("offsets", &vec![0; 4 * symbols.len()]);
            let start = (at - IMAGE) as usize;
            let bytes = offsets(&|i, a| a.wrapping_sub(at + 4 * i as u64) as i64);
            image[start..start + bytes.len()].copy_from_slice(&bytes);
        }
    }
    image.resize(image.len() + 4096, 0);
    (image, text)
}

pub fn info(text: &str) -> Result<VmCoreInfo> {
    let mut page = text.as_bytes().to_vec();
    page.resize(4096, 0);
    VmCoreInfo::parse(&page)
}

/// BTF of a few types:
///
/// ```c
/// struct list { struct list *next, *prev; };                        // 16 typedef const struct
/// list list_t; struct inner { union { struct { int a; unsigned flag:3; }; long whole; }; };  // 8
/// struct outer { char name[16]; list_t links[2][3]; struct inner inner; enum { ONE = 1, MINUS = -1
/// } e; };  // 16 + 96 + 8 + 4 (+ 4) int counter;   // per CPU
/// ```
pub fn btf() -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut string = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.as_bytes());
        strings.push(0);
        at
    };
    let mut types: Vec<u32> = Vec::new();
    let kind = |kind: u32, count: u32| kind << 24 | count;
    let flag = 1 << 31;
    // 1: int, 2: char, 3: long
    for (name, size) in [("int", 4), ("char", 1), ("long", 8)] {
        types.extend([string(name), kind(1, 0), size, 0]);
    }
    // 4: struct list, 5: pointer to it
    types.extend([string("list"), kind(4, 2), 16, string("next"), 5, 0, string("prev"), 5, 64]);
    types.extend([0, kind(2, 0), 4]);
    // 6: const list, 7: list_t
    types.extend([0, kind(10, 0), 4, string("list_t"), kind(8, 0), 6]);
    // 8: anonymous struct with a bit field, 9: anonymous union, 10: inner
    types.extend([0, kind(4, 2) | flag, 8, string("a"), 1, 0, string("flag"), 1, 3 << 24 | 32]);
    types.extend([0, kind(5, 2), 8, 0, 8, 0, string("whole"), 3, 0]);
    types.extend([string("inner"), kind(4, 1), 8, 0, 9, 0]);
    // 11: char[16], 12: list_t[3], 13: list_t[3][2], 14: enum
    types.extend([
        0,
        kind(3, 0),
        0,
        2,
        1,
        16,
        0,
        kind(3, 0),
        0,
        7,
        1,
        3,
        0,
        kind(3, 0),
        0,
        12,
        1,
        2,
    ]);
    types.extend([0, kind(6, 2), 4, string("ONE"), 1, string("MINUS"), u32::MAX]);
    // 15: outer
    types.extend([
        string("outer"),
        kind(4, 4),
        128,
        string("name"),
        11,
        0,
        string("links"),
        13,
        128,
    ]);
    types.extend([string("inner"), 10, 896, string("e"), 14, 960]);
    // 16: per-CPU variable, 17: function prototype, 18: function, 19: enum64, 20: data section
    types.extend([string("counter"), kind(14, 0), 1, 1]);
    types.extend([0, kind(13, 1), 1, string("n"), 1, string("f"), kind(12, 0), 17]);
    types.extend([0, kind(19, 1), 8, string("BIG"), 5, 1]);
    types.extend([string(".data..percpu"), kind(15, 1), 4, 16, 0, 4]);
    let types: Vec<u8> = types.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    let (t, s) = (types.len() as u32, strings.len() as u32);
    bytes.extend([24, 0, t, t, s].iter().flat_map(|w: &u32| w.to_le_bytes()));
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}
