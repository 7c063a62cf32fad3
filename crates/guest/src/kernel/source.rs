// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbols and types from files, for kernels that do not carry their own.
//!
//! Symbols: a `System.map`, or a `vmlinux` with its symbol table. Types: a `vmlinux` with BTF in
//! it, or a file of BTF alone (`pahole --btf_encode_detached` makes one from the DWARF of a debug
//! package). A directory stands for what is in it for the guest's release, at the places where
//! distributions' kernel and debug packages have them, unpacked or installed. A file that is of
//! another build is refused: by the identity of the build, and by the symbols that VMCOREINFO
//! gives.

use crate::error::{Error, Result};
use crate::kernel::btf::Btf;
use crate::kernel::symbols::{Builder, Symbols};
use crate::kernel::types::Types;
use crate::kernel::vmcoreinfo::{KERNEL_BASE, VmCoreInfo};
use crate::memory::printable;
use object::{Object, ObjectSection, ObjectSymbol};
use std::fs;
use std::path::{Path, PathBuf};

/// Largest file. A `vmlinux` with DWARF has about 500 MiB.
const FILE_MAX: u64 = 4 << 30;

/// Longest name of a symbol.
const NAME_MAX: usize = 1024;

/// Files to read symbols and types from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// File or directory of symbols, used instead of the kernel's own.
    pub symbols: Option<PathBuf>,
    /// File or directory of types, used instead of the kernel's own.
    pub types: Option<PathBuf>,
}

impl Sources {
    pub(crate) fn symbols(&self, info: &VmCoreInfo) -> Result<Option<Symbols>> {
        let Some(path) = &self.symbols else { return Ok(None) };
        let release = info.release();
        let path = locate(path, release, &["System.map", "vmlinux"])?;
        let bytes = read(&path)?;
        let wrong = |detail: String| Error::Source { path: path.clone(), detail };
        let mut builder = Builder::default();
        let moved = |address: u64| match address >= KERNEL_BASE {
            true => address.wrapping_add(info.kaslr_offset()),
            // An offset into each CPU's own area.
            false => address,
        };
        if bytes.starts_with(b"\x7fELF") {
            let file = elf(&path, &bytes, info)?;
            for symbol in file.symbols().filter(|s| !s.is_undefined()) {
                let name = symbol.name().unwrap_or_default();
                if !name.is_empty() && name.len() <= NAME_MAX {
                    let kind = if symbol.is_global() { b'D' } else { b'd' };
                    builder.push(moved(symbol.address()), kind, name);
                }
            }
        } else {
            let text = String::from_utf8_lossy(&bytes);
            for line in text.lines() {
                let mut fields = line.split_ascii_whitespace();
                let address = fields.next().and_then(|a| u64::from_str_radix(a, 16).ok());
                let (Some(address), Some(kind), Some(name)) =
                    (address, fields.next(), fields.next())
                else {
                    return Err(wrong(format!(
                        "is no System.map: {:?}",
                        line.chars().take(40).collect::<String>()
                    )));
                };
                if name.len() <= NAME_MAX {
                    builder.push(moved(address), kind.as_bytes()[0], name);
                }
            }
        }
        let symbols = builder.finish();
        // `mem_section` is given by where it points to.
        for (name, address) in info.symbols().filter(|&(_, a)| a >= KERNEL_BASE) {
            if symbols.get(name).is_some_and(|s| s.address != address) {
                return Err(wrong(format!(
                    "is of another build than the guest's {release} ({name} is elsewhere)"
                )));
            }
        }
        if info.symbols().all(|(name, _)| symbols.get(name).is_none()) {
            return Err(wrong("has none of the symbols of the guest's kernel".into()));
        }
        Ok(Some(symbols))
    }

    pub(crate) fn types(&self, info: &VmCoreInfo) -> Result<Option<Types>> {
        let Some(path) = &self.types else { return Ok(None) };
        let path = locate(path, info.release(), &["vmlinux", "btf"])?;
        let bytes = read(&path)?;
        let wrong = |detail: String| Error::Source { path: path.clone(), detail };
        let parse = |bytes: &[u8]| Btf::parse(bytes).map_err(|e| wrong(e.to_string()));
        if !bytes.starts_with(b"\x7fELF") {
            return parse(&bytes).map(|btf| Some(Types::new(btf)));
        }
        let file = elf(&path, &bytes, info)?;
        let Some(section) = file.section_by_name(".BTF") else {
            return Err(wrong(
                "has no BTF: make a file of it with `pahole --btf_encode_detached FILE`, and give that".into(),
            ));
        };
        let data = section.data().map_err(|e| wrong(e.to_string()))?;
        Ok(Some(Types::new(parse(data)?)))
    }
}

/// The file at `path`, or in it, if it is a directory.
fn locate(path: &Path, release: &str, kinds: &[&str]) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.into());
    }
    // The release comes from the guest: it names a file, not a way out of the directory.
    if release.contains('/') {
        return Err(Error::Source {
            path: path.into(),
            detail: format!("no file for release {release:?}"),
        });
    }
    let places = kinds.iter().flat_map(|kind| {
        [
            (*kind).to_owned(),
            format!("{kind}-{release}"),
            format!("boot/{kind}-{release}"),
            format!("lib/modules/{release}/{kind}"),
            format!("lib/modules/{release}/build/{kind}"),
            format!("usr/lib/modules/{release}/{kind}"),
            format!("usr/lib/debug/boot/{kind}-{release}"),
            format!("usr/lib/debug/lib/modules/{release}/{kind}"),
            format!("usr/lib/debug/usr/lib/modules/{release}/{kind}"),
        ]
    });
    let found = places.map(|place| path.join(place)).find(|p| p.is_file());
    found.ok_or_else(|| Error::Source {
        path: path.into(),
        detail: format!("has no {} for {release}", kinds.join(" or ")),
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let wrong = |detail: String| Error::Source { path: path.into(), detail };
    let len = fs::metadata(path).map_err(|e| wrong(e.to_string()))?.len();
    if len > FILE_MAX {
        return Err(wrong(format!("has {len} bytes: that is no kernel")));
    }
    fs::read(path).map_err(|e| wrong(e.to_string()))
}

/// The ELF file, if it is of the same build.
fn elf<'a>(path: &Path, bytes: &'a [u8], info: &VmCoreInfo) -> Result<object::File<'a>> {
    let wrong = |detail: String| Error::Source { path: path.into(), detail };
    let file = object::File::parse(bytes).map_err(|e| wrong(e.to_string()))?;
    let id = file
        .build_id()
        .ok()
        .flatten()
        .map(|id| id.iter().map(|b| format!("{b:02x}")).collect::<String>());
    match (id, info.build_id()) {
        (Some(here), Some(there)) if here != there => {
            let there = printable(there.as_bytes());
            Err(wrong(format!("is build {here}; the guest runs build {there}")))
        }
        _ => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "0000000000000000 D __per_cpu_start\n000000000001fb40 D current_task\nffffffff81000000 T _stext\nffffffff82a10000 D init_uts_ns\n";

    fn info(uts: u64) -> VmCoreInfo {
        let text = format!(
            "OSRELEASE=6.1.0-t\nBUILD-ID=00ff\nKERNELOFFSET=1000000\nSYMBOL(_stext)=ffffffff82000000\nSYMBOL(init_uts_ns)={uts:x}\n\
             SYMBOL(mem_section)=ffff88800000\n"
        );
        VmCoreInfo::parse(text.as_bytes()).unwrap()
    }

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let path =
                std::env::temp_dir().join(format!("reprieve-source-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("boot")).unwrap();
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_system_map_is_moved_to_where_the_kernel_is() {
        let dir = Dir::new("map");
        fs::write(dir.0.join("boot/System.map-6.1.0-t"), MAP).unwrap();
        let sources = Sources { symbols: Some(dir.0.clone()), types: None };
        let symbols = sources.symbols(&info(0xffff_ffff_83a1_0000)).unwrap().unwrap();
        assert_eq!(symbols.address("_stext").unwrap(), 0xffff_ffff_8200_0000);
        assert_eq!(symbols.address("current_task").unwrap(), 0x1fb40);
        let other = sources.symbols(&info(0xffff_ffff_83a1_0008)).unwrap_err().to_string();
        assert!(other.contains("another build") && other.contains("init_uts_ns"), "{other}");
        assert!(Sources::default().symbols(&info(0)).unwrap().is_none());
    }

    #[test]
    fn other_files_are_named() {
        let dir = Dir::new("other");
        let file = dir.0.join("vmlinux");
        fs::write(&file, "no map").unwrap();
        let sources = Sources { symbols: Some(file.clone()), types: Some(file.clone()) };
        for error in [sources.symbols(&info(0)).unwrap_err(), sources.types(&info(0)).unwrap_err()]
        {
            assert!(error.to_string().contains("vmlinux"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let empty = Sources { symbols: Some(dir.0.clone()), types: None }.symbols(&info(0));
        assert!(empty.unwrap_err().to_string().contains("System.map or vmlinux for 6.1.0-t"));
        assert!(sources.types(&info(0)).is_err());
    }

    #[test]
    fn an_elf_file_of_another_build_is_refused() {
        // This program has symbols, no BTF, and an identity of its own or none.
        let own = std::env::current_exe().unwrap();
        let sources = Sources { symbols: Some(own.clone()), types: Some(own) };
        assert!(sources.symbols(&info(0)).is_err());
        let error = sources.types(&info(0)).unwrap_err().to_string();
        assert!(error.contains("pahole") || error.contains("is build"), "{error}");
    }
}
