// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types of the guest's kernel: sizes of structures, offsets of fields.

use super::btf::{Btf, Field};
use crate::error::Result;

/// Types, from wherever the kernel's came.
#[derive(Clone, Debug)]
pub struct Types {
    btf: Btf,
}

impl Types {
    pub fn new(btf: Btf) -> Types {
        Types { btf }
    }

    /// A field by its path: `offset_of("rcu_data", "cblist.len")`. Anonymous structures on the way
    /// are looked into, an array stands for its first element.
    ///
    /// # Errors
    /// [`crate::Error::NoType`] if there is no such structure or field.
    pub fn field(&self, structure: &str, path: &str) -> Result<Field> {
        self.btf.field(structure, path)
    }

    /// Offset of a field, bytes. As [`Types::field`].
    pub fn offset_of(&self, structure: &str, path: &str) -> Result<u64> {
        Ok(self.field(structure, path)?.offset)
    }

    /// Size of a structure, bytes.
    pub fn size_of(&self, structure: &str) -> Result<u64> {
        self.btf.size_of(structure)
    }

    /// Whether there is such a structure with such a field.
    pub fn has(&self, structure: &str, path: &str) -> bool {
        self.field(structure, path).is_ok()
    }

    /// Size of a variable that each CPU has its own of (the kernel describes no others), bytes.
    pub fn variable_size(&self, name: &str) -> Option<u64> {
        self.btf.variable_size(name)
    }

    /// The value of an enumerator, if there is one of this name.
    pub fn enumerator(&self, name: &str) -> Option<i64> {
        self.btf.enumerator(name)
    }

    /// Types in all.
    pub fn len(&self) -> usize {
        self.btf.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that they take, bytes.
    pub fn bytes(&self) -> usize {
        self.btf.bytes()
    }
}
