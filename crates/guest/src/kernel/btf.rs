// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF, the kernel's own description of its types (`Documentation/bpf/btf.rst`).
//!
//! This parser is our own because its input comes from a guest: `btf-rs` is under the LGPL, which a
//! statically linked program cannot easily honour; libbpf is C written for files of a trusted host;
//! other parsers are not maintained. Only structures are needed, and the types that give the size
//! of a field. Types refer to each other by number. A hostile guest may make them refer in circles,
//! so each walk has a bound on its steps.

use super::Reader;
use super::symbols::hash;
use crate::error::{Error, Result};

const MAGIC: u16 = 0xeb9f;

/// Both sections together. Distributions' kernels have 4 to 8 MiB.
const LEN_MAX: u64 = 16 << 20;

/// Typedefs, qualifiers and arrays followed from one type.
const LINKS_MAX: u32 = 64;

/// Nesting of anonymous structures.
const NESTING_MAX: u32 = 16;

/// Longest name of a structure that is found (`KSYM_NAME_LEN`).
const NAME_MAX: usize = 512;

/// Fields looked at for one path, so that nested anonymous structures cannot multiply.
const FIELDS_MAX: u32 = 1 << 20;

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// From the start of the structure, bytes.
    pub offset: u64,
    /// Size of the whole field, bytes.
    pub size: u64,
    /// The number of elements of an array (over all dimensions); 1 for other fields.
    pub elements: u64,
}

/// Kinds of types.
mod kind {
    pub const INT: u32 = 1;
    pub const PTR: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const ENUM: u32 = 6;
    pub const FWD: u32 = 7;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const FUNC: u32 = 12;
    pub const FUNC_PROTO: u32 = 13;
    pub const VAR: u32 = 14;
    pub const DATASEC: u32 = 15;
    pub const FLOAT: u32 = 16;
    pub const DECL_TAG: u32 = 17;
    pub const TYPE_TAG: u32 = 18;
    pub const ENUM64: u32 = 19;
}

/// Parsed BTF.
#[derive(Clone, Debug)]
pub struct Btf {
    types: Vec<Type>,
    /// The type section: what follows each type is read from here.
    data: Vec<u8>,
    strings: Vec<u8>,
    /// Structures and unions with a body: hash of the name and number, sorted. Names may overlap,
    /// so copies of them could be much larger than the strings.
    structures: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Type {
    name: u32,
    info: u32,
    /// Size in bytes, or the type referred to.
    size_or_type: u32,
    /// What follows, in the type section.
    body: u32,
}

impl Type {
    /// Until Linux 7.2, five bits; the others were zero.
    fn kind(self) -> u32 {
        (self.info >> 24) & 0x7f
    }

    /// Until Linux 7.2, 16 bits; the others were zero.
    fn count(self) -> u32 {
        self.info & 0xff_ffff
    }
}

impl Btf {
    /// Reads BTF at a kernel address; `end`, where it must end at the latest, if known.
    pub fn read(memory: &dyn Reader, address: u64, end: Option<u64>) -> Result<Btf> {
        let head = memory.bytes(address, 24)?;
        let head = Header::parse(&head)?;
        let len = head.end().filter(|&len| len <= LEN_MAX).ok_or_else(|| corrupt("its length"))?;
        if end.is_some_and(|end| address.checked_add(len).is_none_or(|mine| mine > end)) {
            return Err(corrupt("it is longer than its section"));
        }
        Btf::parse(&memory.bytes(address, len as usize)?)
    }

    /// Parses BTF with its header, little-endian.
    pub fn parse(bytes: &[u8]) -> Result<Btf> {
        let head = Header::parse(bytes)?;
        let section = |(offset, len): (u32, u32)| {
            let start = (head.len as usize).checked_add(offset as usize)?;
            bytes.get(start..start.checked_add(len as usize)?)
        };
        let data = section(head.types).ok_or_else(|| corrupt("its types are cut off"))?;
        let strings = section(head.strings).ok_or_else(|| corrupt("its strings are cut off"))?;
        let mut btf = Btf {
            types: vec![Type::default()],
            data: data.to_vec(),
            strings: strings.to_vec(),
            structures: Vec::new(),
        };
        btf.index()?;
        Ok(btf)
    }

    fn index(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.data.len() {
            let cut = || corrupt(format!("type {} is cut off", self.types.len()));
            let word = |index: usize| word(&self.data, at + 4 * index).ok_or_else(cut);
            let new = Type {
                name: word(0)?,
                info: word(1)?,
                size_or_type: word(2)?,
                body: at as u32 + 12,
            };
            let count = new.count() as usize;
            let body = match new.kind() {
                kind::INT | kind::VAR | kind::DECL_TAG => 4,
                kind::ARRAY => 12,
                kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
                kind::ENUM | kind::FUNC_PROTO => 8 * count,
                kind::PTR | kind::FWD | kind::TYPEDEF | kind::VOLATILE | kind::CONST => 0,
                kind::RESTRICT | kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
                other => {
                    return Err(corrupt(format!("type {} is of kind {other}", self.types.len())));
                }
            };
            at += 12 + body;
            if at > self.data.len() {
                return Err(cut());
            }
            let id = self.types.len() as u32;
            if matches!(new.kind(), kind::STRUCT | kind::UNION) && new.name != 0 {
                if let Some(name) = self.name(new.name) {
                    self.structures.push((hash(name), id));
                }
            }
            self.types.push(new);
        }
        // The types are kept as long as their guest.
        self.types.shrink_to_fit();
        self.structures.shrink_to_fit();
        self.structures.sort_unstable();
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Memory that it takes, bytes.
    pub fn bytes(&self) -> usize {
        self.data.len()
            + self.strings.len()
            + self.types.capacity() * size_of::<Type>()
            + self.structures.capacity() * size_of::<(u64, u32)>()
    }

    pub fn is_empty(&self) -> bool {
        self.types.len() <= 1
    }

    /// As [`super::types::Types::size_of`].
    pub fn size_of(&self, structure: &str) -> Result<u64> {
        Ok(self.types[self.structure(structure)? as usize].size_or_type.into())
    }

    /// As [`super::types::Types::field`].
    pub fn field(&self, structure: &str, path: &str) -> Result<Field> {
        let missing = || Error::NoType { name: format!("{structure}.{path}") };
        let mut id = self.structure(structure)?;
        let (mut bits, mut budget) = (0u64, FIELDS_MAX);
        for name in path.split('.') {
            // An array of structures stands for its first element.
            let holder = self.element(id).ok_or_else(missing)?.0;
            let found = self.member(holder, name.as_bytes(), 0, &mut budget).ok_or_else(missing)?;
            bits += found.1;
            id = found.0;
        }
        let (element, elements) = self.element(id).ok_or_else(missing)?;
        let size = self.size(element).ok_or_else(missing)?.saturating_mul(elements);
        Ok(Field { offset: bits / 8, size, elements })
    }

    /// As [`super::types::Types::variable_size`].
    pub fn variable_size(&self, name: &str) -> Option<u64> {
        let named = |t: &&Type| t.kind() == kind::VAR && self.is_named(t.name, name.as_bytes());
        let (element, elements) = self.element(self.types.iter().find(named)?.size_or_type)?;
        Some(self.size(element)?.saturating_mul(elements))
    }

    fn structure(&self, name: &str) -> Result<u32> {
        let wanted = hash(name.as_bytes());
        let at = self.structures.partition_point(|&(hash, _)| hash < wanted);
        let same = self.structures[at..].iter().take_while(|(hash, _)| *hash == wanted);
        // The first: later ones of the same name are local to some file.
        let named = |id: &u32| self.is_named(self.types[*id as usize].name, name.as_bytes());
        let found = same.map(|&(_, id)| id).find(named);
        found.ok_or_else(|| Error::NoType { name: name.into() })
    }

    /// Type and offset (bits) of the member `name` of structure `id`.
    fn member(&self, id: u32, name: &[u8], depth: u32, budget: &mut u32) -> Option<(u32, u64)> {
        let holder = self.types.get(id as usize)?;
        if !matches!(holder.kind(), kind::STRUCT | kind::UNION) || depth > NESTING_MAX {
            return None;
        }
        for index in 0..holder.count() as usize {
            *budget = budget.checked_sub(1)?;
            let at = holder.body as usize + 12 * index;
            let (label, member) = (word(&self.data, at)?, word(&self.data, at + 4)?);
            let mut offset = word(&self.data, at + 8)?;
            if holder.info >> 31 != 0 {
                // The top byte is the size of a bit field.
                offset &= 0xff_ffff;
            }
            if label != 0 {
                if self.is_named(label, name) {
                    return Some((member, offset.into()));
                }
            } else if let Some(inner) = self.plain(member) {
                if let Some((found, within)) = self.member(inner, name, depth + 1, budget) {
                    return Some((found, u64::from(offset) + within));
                }
            }
        }
        None
    }

    /// `id` without typedefs and qualifiers.
    fn plain(&self, mut id: u32) -> Option<u32> {
        for _ in 0..LINKS_MAX {
            let this = self.types.get(id as usize)?;
            match this.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = this.size_or_type;
                }
                _ => return Some(id),
            }
        }
        None
    }

    /// The plain type of the elements of `id`, and their number; 1 for what is no array.
    fn element(&self, id: u32) -> Option<(u32, u64)> {
        let (mut id, mut elements) = (self.plain(id)?, 1u64);
        for _ in 0..LINKS_MAX {
            let this = self.types.get(id as usize)?;
            if this.kind() != kind::ARRAY {
                return Some((id, elements));
            }
            elements = elements.saturating_mul(word(&self.data, this.body as usize + 8)?.into());
            id = self.plain(word(&self.data, this.body as usize)?)?;
        }
        None
    }

    /// Size of a plain type that is no array.
    fn size(&self, id: u32) -> Option<u64> {
        let this = self.types.get(id as usize)?;
        match this.kind() {
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                Some(this.size_or_type.into())
            }
            kind::PTR => Some(8),
            _ => None,
        }
    }

    /// Not looked for further than a name may be long, since names may overlap.
    fn name(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.strings.get(offset as usize..)?;
        let end = rest.iter().take(NAME_MAX).position(|&b| b == 0)?;
        Some(&rest[..end])
    }

    fn is_named(&self, offset: u32, name: &[u8]) -> bool {
        let rest = self.strings.get(offset as usize..).and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.first().is_none_or(|&b| b == 0))
    }
}

struct Header {
    len: u32,
    types: (u32, u32),
    strings: (u32, u32),
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Header> {
        let field = |index: usize| word(bytes, 4 + 4 * index);
        let parse = || {
            let magic = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
            (magic == MAGIC && bytes.get(2) == Some(&1)).then_some(())?;
            let head = Header {
                len: field(0)?,
                types: (field(1)?, field(2)?),
                strings: (field(3)?, field(4)?),
            };
            (head.len >= 24).then_some(head)
        };
        parse().ok_or_else(|| corrupt("it has no header of version 1"))
    }

    /// Length of everything, bytes.
    fn end(&self) -> Option<u64> {
        let end = |(offset, len): (u32, u32)| u64::from(offset) + u64::from(len);
        end(self.types).max(end(self.strings)).checked_add(self.len.into())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn corrupt(detail: impl Into<String>) -> Error {
    Error::corrupt("BTF", detail)
}
