// SPDX-License-Identifier: MIT OR Apache-2.0
//! An address as text that can be looked up later: image and offset, as `addr2line -e IMAGE OFFSET`
//! takes them, and the exported function that it lies in. Programs that want lines at once
//! symbolize [`Laggard::stack`](super::Laggard::stack) themselves.
//!
//! The leader of a grace period writes this, and so it must not wait for the loader's lock, as
//! `dladdr` does: a constructor or a finalizer, which runs under that lock, may wait for the grace
//! period. `_dl_find_object` (glibc 2.35) takes no lock. Elsewhere there is the bare address.

use std::ffi::{CStr, OsStr, c_char};
use std::fmt::{Display, Formatter, Result};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null;

pub(crate) struct Symbol(pub(crate) usize);

impl Display for Symbol {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Some(image) = Image::of(self.0) else {
            return write!(f, "{:#x}", self.0);
        };
        // SAFETY: the address is one of code that a thread runs, so the image is loaded; at worst
        // another thread unloads it now, whose code a reader runs.
        let (name, symbol) = unsafe { (CStr::from_ptr(image.map.name), image.symbol(self.0)) };
        // The name of the program itself is empty.
        let program = name.is_empty().then(|| std::fs::read_link("/proc/self/exe").ok()).flatten();
        let path = program.as_deref().map_or(OsStr::from_bytes(name.to_bytes()), |p| p.as_os_str());
        let offset = self.0.wrapping_sub(image.map.bias);
        write!(f, "{}+{offset:#x}", path.to_string_lossy())?;
        match symbol {
            Some((name, offset)) => write!(f, " ({}+{offset:#x})", name.to_string_lossy()),
            None => Ok(()),
        }
    }
}

/// The C library's `struct link_map`, as far as it is public.
#[repr(C)]
struct LinkMap {
    /// Addresses in memory are greater by this than those in the file.
    bias: usize,
    name: *const c_char,
    dynamic: *const [usize; 2],
}

/// The C library's `struct dl_find_object`, with room for what differs between architectures.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    map: *const LinkMap,
    rest: [usize; 12],
}

type FindObject = unsafe extern "C" fn(usize, *mut Found) -> libc::c_int;

/// `_dl_find_object`, if the C library has it.
fn find_object() -> Option<FindObject> {
    let function: usize;
    // SAFETY: reads an entry of the GOT, which is null if the symbol, being weak, is not defined.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            ".weak _dl_find_object",
            "mov {0}, qword ptr [rip + _dl_find_object@GOTPCREL]",
            out(reg) function,
            options(nostack, readonly, preserves_flags)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            ".weak _dl_find_object",
            "adrp {0}, :got:_dl_find_object",
            "ldr {0}, [{0}, :got_lo12:_dl_find_object]",
            out(reg) function,
            options(nostack, readonly, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        function = 0;
    }
    // SAFETY: null, or a function of this type.
    unsafe { std::mem::transmute::<usize, Option<FindObject>>(function) }
}

/// A loaded image.
struct Image {
    start: usize,
    end: usize,
    map: &'static LinkMap,
}

impl Image {
    fn of(address: usize) -> Option<Image> {
        let mut found = Found { flags: 0, start: 0, end: 0, map: null(), rest: [0; 12] };
        // SAFETY: fills in what it is given.
        if unsafe { find_object()?(address, &mut found) } != 0 {
            return None;
        }
        // SAFETY: null, or the loader's description of the image.
        let map = unsafe { found.map.as_ref() }.filter(|map| !map.name.is_null())?;
        Some(Image { start: found.start, end: found.end, map })
    }

    /// Item `index` of a table at `table`, if it lies in the image.
    ///
    /// # Safety
    /// The image is loaded, and what lies there may be read as a `T`.
    unsafe fn read<T: Copy>(&self, table: usize, index: usize) -> Option<T> {
        let address = table.checked_add(index.checked_mul(size_of::<T>())?)?;
        let inside = address >= self.start && address.checked_add(size_of::<T>())? <= self.end;
        // SAFETY: the caller's promise.
        inside.then(|| unsafe { std::ptr::with_exposed_provenance::<T>(address).read_unaligned() })
    }

    /// The exported symbol that the address lies in, and how far behind its start.
    ///
    /// # Safety
    /// The image is loaded.
    unsafe fn symbol(&self, address: usize) -> Option<(&CStr, usize)> {
        const STRINGS: usize = 5;
        const SYMBOLS: usize = 6;
        const HASHES: usize = 0x6fff_fef5;
        let (mut symbols, mut strings, mut hashes) = (0, 0, 0);
        let dynamic = self.map.dynamic.expose_provenance();
        // SAFETY: the caller's promise, here and below. The loader itself uses these tables: the
        // dynamic section ends with an entry of tag 0, and the symbols that are exported are those
        // of the GNU hash table, a chain for each bucket. Numbers of symbols are 32 bits.
        unsafe {
            for entry in 0.. {
                let [tag, value] = self.read::<[usize; 2]>(dynamic, entry)?;
                // The loader does not relocate all images' sections.
                let table =
                    if value < self.start { self.map.bias.wrapping_add(value) } else { value };
                match tag {
                    0 => break,
                    STRINGS => strings = table,
                    SYMBOLS => symbols = table,
                    HASHES => hashes = table,
                    _ => {}
                }
            }
            let [buckets, first, bloom, _] = self.read::<[u32; 4]>(hashes, 0)?;
            let heads = hashes + size_of::<[u32; 4]>() + bloom as usize * size_of::<usize>();
            let chains = heads + buckets as usize * size_of::<u32>();
            for bucket in 0..buckets as usize {
                let head = self.read::<u32>(heads, bucket)?;
                if head < first {
                    continue;
                }
                for number in head.. {
                    let symbol = self.read::<libc::Elf64_Sym>(symbols, number as usize)?;
                    let start = self.map.bias.wrapping_add(symbol.st_value as usize);
                    let offset = address.wrapping_sub(start);
                    let code = matches!(symbol.st_info & 0xf, FUNCTION | INDIRECT_FUNCTION);
                    if code && symbol.st_shndx != 0 && offset < symbol.st_size as usize {
                        let name = strings + symbol.st_name as usize;
                        self.read::<u8>(name, 0)?;
                        let name = CStr::from_ptr(std::ptr::with_exposed_provenance(name));
                        return Some((name, offset));
                    }
                    if self.read::<u32>(chains, (number - first) as usize)? & 1 != 0 {
                        break;
                    }
                }
            }
        }
        None
    }
}

/// Types of symbols.
const FUNCTION: u8 = 2;
const INDIRECT_FUNCTION: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn text_of(address: usize) -> String {
        Symbol(address).to_string()
    }

    #[test]
    fn an_exported_function_is_named() {
        if find_object().is_none() {
            return println!("an older C library: skipped");
        }
        let start = libc::getppid as *const () as usize;
        let text = text_of(start + 1);
        let (image, rest) = text.split_once('+').unwrap();
        assert!(image.starts_with('/') && image.contains("libc"), "{text}");
        assert!(rest.ends_with(" (getppid+0x1)"), "{text}");
    }

    /// The program itself, by its path and the address in its file.
    #[test]
    fn the_program_is_named() {
        let start = the_program_is_named as fn() as usize;
        if find_object().is_none() {
            return assert_eq!(text_of(start), format!("{start:#x}"));
        }
        let program = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let first = maps.lines().find(|line| line.ends_with(program.to_str().unwrap())).unwrap();
        let base = usize::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        // Test programs are position-independent: the addresses in the file begin with 0.
        assert_eq!(text_of(start), format!("{}+{:#x}", program.display(), start - base));
        assert_eq!(text_of(1), "0x1");
    }

    static STARTED: AtomicBool = AtomicBool::new(false);
    static INSIDE: AtomicBool = AtomicBool::new(false);
    static NAMED: AtomicBool = AtomicBool::new(false);

    extern "C" fn finalizer() {
        INSIDE.store(true, Ordering::SeqCst);
        while !NAMED.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// The finalizer runs under the loader's lock, and waits for a grace period whose leader writes
    /// a report.
    #[test]
    #[cfg_attr(target_feature = "crt-static", ignore = "a static program opens no plugin")]
    #[cfg_attr(target_arch = "aarch64", ignore = "`cc` compiles for the machine that emulates")]
    fn a_finalizer_may_wait_for_a_report() {
        let file = std::env::temp_dir().join(format!("finalizer-{}", std::process::id()));
        let (source, image) = (file.with_extension("c"), file.with_extension("so"));
        let text = "void (*hook)(void); __attribute__((destructor)) void end(void) { hook(); }";
        std::fs::write(&source, text).unwrap();
        // Cargo links with it, too.
        let mut compiler = std::process::Command::new("cc");
        let compiled = compiler.args(["-shared", "-fPIC", "-o"]).arg(&image).arg(&source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            return println!("no compiler: skipped");
        }
        let path = CString::new(image.to_str().unwrap()).unwrap();
        // SAFETY: strings; the image has a variable of that name and type.
        let plugin = unsafe {
            let plugin = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!plugin.is_null());
            *libc::dlsym(plugin, c"hook".as_ptr()).cast::<extern "C" fn()>() = finalizer;
            plugin
        };
        std::fs::remove_file(source).unwrap();
        std::fs::remove_file(image).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                STARTED.store(true, Ordering::SeqCst);
                while !INSIDE.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                text_of(finalizer as extern "C" fn() as usize);
                NAMED.store(true, Ordering::SeqCst);
            });
            // A thread that starts needs the loader's lock as well.
            while !STARTED.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // SAFETY: opened above, and nobody else knows it.
            assert_eq!(unsafe { libc::dlclose(plugin) }, 0);
        });
        assert!(INSIDE.load(Ordering::SeqCst));
    }
}
