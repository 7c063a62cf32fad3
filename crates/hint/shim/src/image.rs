// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions of the C library and of the kernel, from their own tables of symbols. Other preloaded
//! libraries may stand in front of what `dlsym` finds, and it takes locks, and allocates.

use libc::{Elf64_Sym, PT_DYNAMIC, c_int, c_void, dl_phdr_info};
use std::ffi::CStr;
use std::sync::OnceLock;

/// A loaded image's table of symbols.
#[derive(Clone, Copy, Default)]
struct Image {
    base: usize,
    symbols: usize,
    strings: usize,
    versions: usize,
    hash: usize,
}

/// The C library, or several of that name, and the kernel's image.
#[derive(Default)]
struct Images {
    libc: [Image; 2],
    found: usize,
    kernel: Image,
}

static IMAGES: OnceLock<Images> = OnceLock::new();

fn images() -> &'static Images {
    IMAGES.get_or_init(|| {
        let mut images = Images::default();
        // SAFETY: `look` gets the pointer as it is here.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut images).cast()) };
        images
    })
}

/// The C library's function of that name, in its newest version.
pub fn libc(name: &CStr) -> Option<*mut c_void> {
    let images = images();
    images.libc[..images.found].iter().find_map(|image| image.find(name))
}

/// The function of that name in the kernel's image.
pub fn kernel(name: &CStr) -> Option<*mut c_void> {
    images().kernel.find(name)
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, images: *mut c_void) -> c_int {
    // SAFETY: the loader's; ours, from `images`.
    let (info, images) = unsafe { (&*info, &mut *images.cast::<Images>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a string of the loader's.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    if name.ends_with(b"/libc.so.6") && images.found < images.libc.len() {
        images.libc[images.found] = Image::of(info);
        images.found += 1;
    } else if name == b"linux-vdso.so.1" {
        images.kernel = Image::of(info);
    }
    0
}

/// Words of a table of tags.
const DT_NULL: usize = 0;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;
/// A bit of a symbol's version: not the one for new programs.
const HIDDEN: u16 = 1 << 15;

impl Image {
    fn of(info: &dl_phdr_info) -> Image {
        let mut image = Image { base: info.dlpi_addr as usize, ..Image::default() };
        // SAFETY: the loader's headers of a loaded image, whose dynamic section ends with DT_NULL.
        unsafe {
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            let Some(dynamic) = headers.iter().find(|h| h.p_type == PT_DYNAMIC) else {
                return image;
            };
            let mut entry = at::<[usize; 2]>(image.base + dynamic.p_vaddr as usize);
            while (*entry)[0] != DT_NULL {
                let [tag, mut value] = *entry;
                // The loader adds the base, but not in the kernel's image.
                if value < image.base {
                    value += image.base;
                }
                match tag {
                    DT_STRTAB => image.strings = value,
                    DT_SYMTAB => image.symbols = value,
                    DT_GNU_HASH => image.hash = value,
                    DT_VERSYM => image.versions = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        image
    }

    fn find(&self, name: &CStr) -> Option<*mut c_void> {
        if [self.symbols, self.strings, self.hash].contains(&0) {
            return None;
        }
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: the tables of a loaded image, laid out as its format says.
        unsafe {
            let [buckets, first, bloom, _] = *at::<[u32; 4]>(self.hash);
            let words = at::<u32>(self.hash + 16 + bloom as usize * 8);
            let chains = words.add(buckets as usize);
            let mut index = *words.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let chain = *chains.add((index - first) as usize);
                if chain | 1 == hash | 1 && self.is(index as usize, name) {
                    let symbol = at::<Elf64_Sym>(self.symbols).add(index as usize);
                    let address = self.base + (*symbol).st_value as usize;
                    return Some(std::ptr::with_exposed_provenance_mut(address));
                }
                if chain & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// Whether that symbol is the default version of that name.
    ///
    /// # Safety
    /// The image has so many symbols.
    unsafe fn is(&self, index: usize, name: &CStr) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let symbol = &*at::<Elf64_Sym>(self.symbols).add(index);
            let hidden = self.versions != 0 && *at::<u16>(self.versions).add(index) & HIDDEN != 0;
            let called = CStr::from_ptr(at(self.strings + symbol.st_name as usize));
            symbol.st_shndx != 0 && !hidden && called == name
        }
    }
}

fn at<T>(address: usize) -> *const T {
    std::ptr::with_exposed_provenance(address)
}
