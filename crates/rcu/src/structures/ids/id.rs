// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of objects that stay unique when an index is used again.

use std::num::NonZeroU64;

/// Names an object of an [`IdTable`](super::IdTable): index in the low half, generation (from 1) in
/// the high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Id(NonZeroU64);

impl Id {
    pub(super) fn new(index: u32, generation: u32) -> Option<Id> {
        if generation == 0 {
            None
        } else {
            NonZeroU64::new((generation as u64) << 32 | index as u64).map(Id)
        }
    }

    /// The id as a number, for other programs or processes.
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The id of a number. `None` if no id has this number. The table finds out whether the id
    /// names an object.
    pub fn from_number(number: u64) -> Option<Id> {
        Id::new(number as u32, (number >> 32) as u32)
    }

    /// Its index in the table.
    pub fn index(self) -> u32 {
        self.get() as u32
    }

    /// How many objects have had this index, this one included.
    pub fn generation(self) -> u32 {
        (self.get() >> 32) as u32
    }
}
