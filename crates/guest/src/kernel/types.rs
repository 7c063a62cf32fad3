// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types of the guest's kernel: sizes of structures, offsets of fields.

use super::btf::{Btf, Field};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of looked-up fields that are kept.
const KNOWN_MOST: usize = 1024;

/// By structure and path; `Err`: the name of what there is not.
type Known = HashMap<(String, String), std::result::Result<Field, String>>;

/// Types, from wherever the kernel's came.
#[derive(Clone, Debug)]
pub struct Types {
    btf: Btf,
    /// A hostile guest's types may take long to look through.
    known: Arc<Mutex<Known>>,
}

impl Types {
    pub fn new(btf: Btf) -> Types {
        Types { btf, known: Arc::default() }
    }

    /// A field by its path: `offset_of("rcu_data", "cblist.len")`. Anonymous structures on the way
    /// are looked into, an array stands for its first element.
    ///
    /// # Errors
    /// [`crate::Error::NoType`] if there is no such structure or field.
    pub fn field(&self, structure: &str, path: &str) -> Result<Field> {
        let key = (structure.to_owned(), path.to_owned());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().get(&key).cloned();
        let found = match before {
            Some(found) => found,
            None => {
                let found = match self.btf.field(structure, path) {
                    Err(Error::NoType { name }) => Err(name),
                    found => Ok(found?),
                };
                let mut known = known();
                if known.len() < KNOWN_MOST {
                    known.insert(key, found.clone());
                }
                found
            }
        };
        found.map_err(|name| Error::NoType { name })
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
