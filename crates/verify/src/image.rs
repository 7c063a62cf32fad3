// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of an ELF file that the verifier uses: the restartable section, symbols, relocations,
//! and constant data.

use crate::error::Error;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader, Sym};
use object::{
    Endianness, Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionFlags, SectionIndex,
    elf,
};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The section's name.
pub const SECTION: &str = "reprieve_restart";

/// Far beyond any real section (a lookup has some hundred bytes).
const LARGEST: u64 = 1 << 20;
/// Symbols and relocations that are looked at.
const MOST: usize = 1 << 22;
/// Bytes of a name in the file, and of one that is shown.
const LONGEST_NAME: usize = 1 << 12;
const LONGEST_SHOWN: usize = 1 << 9;

/// The value that the dynamic linker puts at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fixup<'a> {
    /// An address of this file.
    Here(u64),
    /// The address of a symbol of another file.
    Symbol(Name<'a>),
}

/// A name in a string table, with what follows it there. It is cut and demangled when it is shown:
/// a file may have as many symbols as bytes in a name that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    fn at(strings: &'a [u8], offset: u32) -> Name<'a> {
        let rest = strings.get(offset as usize..).unwrap_or_default();
        Name(&rest[..rest.len().min(LONGEST_NAME)])
    }

    fn is(self, name: &str) -> bool {
        self.0.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.0.split(|&b| b == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        let mut shown = Shown(String::new());
        // Fails if the name is too long; its beginning is there.
        let _ = write!(shown, "{:#}", rustc_demangle::demangle(&name));
        f.write_str(&shown.0)
    }
}

/// Takes the beginning of a name. What Rust's compiler writes in a few bytes may be very long.
struct Shown(String);

impl Write for Shown {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            if self.0.len() >= LONGEST_SHOWN {
                self.0.push_str("...");
                return Err(std::fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}

pub(crate) struct Image<'a> {
    /// Address and bytes of the restartable section.
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
    pub(crate) executable: bool,
    /// Other loaded sections by address: bytes, writable.
    sections: BTreeMap<u64, (&'a [u8], bool)>,
    /// Code and data symbols by address.
    symbols: BTreeMap<u64, Name<'a>>,
    /// Symbols of functions in the section.
    pub(crate) functions: BTreeMap<u64, Name<'a>>,
    fixups: BTreeMap<u64, Fixup<'a>>,
    /// Lengths of functions of the section, by address: those of sized symbols.
    lengths: BTreeMap<u64, u64>,
}

fn malformed(error: impl std::fmt::Display) -> Error {
    Error::Malformed(error.to_string())
}

fn machine(number: u16) -> String {
    match number {
        elf::EM_AARCH64 => "aarch64".into(),
        elf::EM_386 => "32-bit x86".into(),
        elf::EM_ARM => "32-bit Arm".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_PPC64 => "64-bit PowerPC".into(),
        elf::EM_S390 => "s390".into(),
        other => format!("machine {other}"),
    }
}

/// Only files for x86-64 have restartable sections.
fn check_machine(file: &[u8]) -> Result<(), Error> {
    // The header of either class begins with the same fields up to the machine's number.
    if file.len() < 20 || file[..4] != *b"\x7fELF" {
        let what = if file.starts_with(b"!<arch>\n") {
            "it is an archive; verify the program that is linked with it"
        } else {
            "no ELF header"
        };
        return Err(malformed(what));
    }
    let number = [file[18], file[19]];
    let number = if file[5] == 2 { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) };
    if number != elf::EM_X86_64 {
        return Err(Error::Architecture(machine(number)));
    }
    if file[4] != 2 || file[5] != 1 {
        return Err(Error::Architecture("x86-64 with 32-bit pointers (x32)".into()));
    }
    Ok(())
}

/// The bytes of a string table.
fn strings<'a>(elf: &ElfFile64<'a, Endianness>, section: SectionIndex) -> &'a [u8] {
    elf.section_by_index(section).and_then(|s| s.data()).unwrap_or_default()
}

/// Only linked files have addresses.
fn check_kind(elf: &ElfFile64<'_, Endianness>) -> Result<(), Error> {
    let header = elf.elf_header();
    match header.e_type(elf.endian()) {
        elf::ET_EXEC | elf::ET_DYN => {}
        elf::ET_REL => return Err(Error::NotLinked),
        other => {
            return Err(malformed(format!(
                "file type {other} is neither a program nor a shared object"
            )));
        }
    }
    if elf.sections().next().is_none() {
        return Err(Error::NoSectionTable);
    }
    Ok(())
}

impl<'a> Image<'a> {
    /// # Errors
    /// When `file` is not a linked file for x86-64 with one restartable section of a sane size.
    pub(crate) fn parse(file: &'a [u8]) -> Result<Image<'a>, Error> {
        check_machine(file)?;
        let elf = ElfFile64::<Endianness>::parse(file).map_err(malformed)?;
        check_kind(&elf)?;
        let names = elf.elf_header().shstrndx(elf.endian(), file).unwrap_or_default();
        let names = strings(&elf, SectionIndex(names as usize));
        let mut found = None;
        let mut sections = BTreeMap::new();
        for section in elf.sections() {
            let name = Name::at(names, section.elf_section_header().sh_name(elf.endian()));
            let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
            if sh_flags & u64::from(elf::SHF_ALLOC) == 0 {
                continue;
            }
            let Ok(bytes) = section.data() else {
                // Damage matters in the restartable section only: no other is needed.
                if name.is(SECTION) {
                    return Err(malformed("the section lies outside the file"));
                }
                continue;
            };
            if name.is(SECTION) {
                if found.is_some() {
                    return Err(malformed(
                        "more than one section `reprieve_restart`: one descriptor cannot span them",
                    ));
                }
                let executable = sh_flags & u64::from(elf::SHF_EXECINSTR) != 0;
                found = Some((section.address(), bytes, executable));
                continue;
            }
            // Sections without bytes (.tbss) may share an address with the next one.
            if !bytes.is_empty() {
                let writable = sh_flags & u64::from(elf::SHF_WRITE) != 0;
                sections.entry(section.address()).or_insert((bytes, writable));
            }
        }
        let (start, bytes, executable) = found.ok_or(Error::NoSection)?;
        if bytes.is_empty() {
            return Err(Error::NoSection);
        }
        if bytes.len() as u64 > LARGEST || start.checked_add(LARGEST).is_none() {
            return Err(Error::TooLarge(format!(
                "a section of {} bytes at {start:#x}",
                bytes.len()
            )));
        }
        let mut image = Image {
            start,
            bytes,
            executable,
            sections,
            symbols: BTreeMap::new(),
            functions: BTreeMap::new(),
            fixups: BTreeMap::new(),
            lengths: BTreeMap::new(),
        };
        image.read_symbols(&elf);
        image.read_fixups(&elf);
        if image.functions.is_empty() {
            return Err(Error::NoSymbols);
        }
        Ok(image)
    }

    fn read_symbols(&mut self, elf: &ElfFile64<'a, Endianness>) {
        for (symbols, table) in [
            (elf.symbols(), elf.elf_symbol_table()),
            (elf.dynamic_symbols(), elf.elf_dynamic_symbol_table()),
        ] {
            let strings = strings(elf, table.string_section());
            for symbol in symbols.take(MOST) {
                if symbol.is_undefined()
                    || !matches!(
                        symbol.kind(),
                        object::SymbolKind::Text
                            | object::SymbolKind::Data
                            | object::SymbolKind::Label
                            | object::SymbolKind::Unknown
                    )
                {
                    continue;
                }
                let address = symbol.address();
                let name = Name::at(strings, symbol.elf_symbol().st_name(elf.endian()));
                if name.0.is_empty() || name.is("") {
                    continue;
                }
                if self.contains(address)
                    && !name.0.starts_with(b"__start_")
                    && !name.0.starts_with(b"__stop_")
                {
                    self.functions.entry(address).or_insert(name);
                    if symbol.kind() == object::SymbolKind::Text && symbol.size() > 0 {
                        let length = self.lengths.entry(address).or_default();
                        *length = symbol.size().max(*length);
                    }
                }
                self.symbols.entry(address).or_insert(name);
            }
        }
    }

    fn read_fixups(&mut self, elf: &ElfFile64<'a, Endianness>) {
        let names = elf.dynamic_symbol_table();
        let strings = strings(elf, elf.elf_dynamic_symbol_table().string_section());
        for (at, relocation) in elf.dynamic_relocations().into_iter().flatten().take(MOST) {
            let fixup = match relocation.target() {
                RelocationTarget::Symbol(index) => {
                    let symbol = names
                        .and_then(|n| object::ObjectSymbolTable::symbol_by_index(&n, index).ok());
                    match symbol {
                        Some(s) if s.is_undefined() => {
                            Fixup::Symbol(Name::at(strings, s.elf_symbol().st_name(elf.endian())))
                        }
                        Some(s) => {
                            Fixup::Here(s.address().wrapping_add_signed(relocation.addend()))
                        }
                        None => continue,
                    }
                }
                RelocationTarget::Absolute => Fixup::Here(relocation.addend() as u64),
                _ => continue,
            };
            self.fixups.insert(at, fixup);
        }
    }

    /// Whether an address lies in the restartable section.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.bytes.len() as u64
    }

    /// Whether an address lies in a function of the section whose length is known.
    pub(crate) fn covers(&self, address: u64) -> bool {
        let function = self.lengths.range(..=address).next_back();
        function.is_some_and(|(start, length)| address - start < *length)
    }

    fn find(&self, address: u64, length: u64) -> Option<(&'a [u8], bool)> {
        let (start, &(bytes, writable)) = self.sections.range(..=address).next_back()?;
        let offset = address - start;
        let end = offset.checked_add(length)?;
        Some((bytes.get(offset as usize..end as usize)?, writable))
    }

    /// Bytes of any other section, as they are in the file.
    pub(crate) fn data(&self, address: u64, length: u64) -> Option<&'a [u8]> {
        self.find(address, length).map(|(bytes, _)| bytes)
    }

    /// Bytes that never change while the program runs.
    pub(crate) fn constant(&self, address: u64, length: u64) -> Option<&'a [u8]> {
        self.find(address, length).and_then(|(bytes, writable)| (!writable).then_some(bytes))
    }

    fn stored(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.data(address, 8)?.try_into().ok()?))
    }

    /// The pointer at an address, after relocation. Packed relocations (`.relr.dyn`) have it in
    /// place.
    pub(crate) fn pointer(&self, address: u64) -> Option<Fixup<'a>> {
        self.fixups.get(&address).copied().or_else(|| self.stored(address).map(Fixup::Here))
    }

    /// The name of a function of the section, for a message.
    pub(crate) fn function(&self, address: u64) -> String {
        match self.functions.get(&address) {
            Some(name) => name.to_string(),
            None => format!("function at {address:#x}"),
        }
    }

    /// `name` or `name+0x12`, for a message.
    pub(crate) fn name(&self, address: u64) -> String {
        if let Some(name) = self.through_stub(address) {
            return name;
        }
        match self.symbols.range(..=address).next_back() {
            Some((&at, name)) if at == address => format!("`{name}`"),
            Some((&at, name)) if address - at < 1 << 16 => format!("`{name}`+{:#x}", address - at),
            _ => format!("{address:#x}"),
        }
    }

    /// If a stub of the procedure linkage table is there: what it leads to.
    fn through_stub(&self, address: u64) -> Option<String> {
        let bytes = self.constant(address, 16)?;
        let mut decoder =
            iced_x86::Decoder::with_ip(64, bytes, address, iced_x86::DecoderOptions::NONE);
        let jump = decoder.iter().take(2).find(|i| i.mnemonic() == iced_x86::Mnemonic::Jmp)?;
        if !jump.is_ip_rel_memory_operand() {
            return None;
        }
        match self.fixups.get(&jump.ip_rel_memory_address())? {
            Fixup::Symbol(name) => Some(format!("`{name}`")),
            Fixup::Here(_) => None,
        }
    }
}
