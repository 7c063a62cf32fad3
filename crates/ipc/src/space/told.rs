// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes of objects, as this process was told them.
//!
//! A program makes room for the values of a set, or leaves room for a segment (`SHM_REMAP`), by the
//! size that it knows. An object's size never changes, so one that is larger than it was has been
//! written to by somebody who wants more to be written than there is room for. What a process sees
//! first it believes: its program has no other knowledge either.

use super::layout::{Kind, SLOTS};
use crate::error::{CORRUPT, Result};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// By kind and slot: the id's sequence number, and below it the size plus one; 0: nothing yet.
/// Arrays of [`SLOTS`], made on first use and never freed. Nobody waits for who makes one: in the
/// child of a fork that thread is not there.
#[derive(Default)]
pub(crate) struct Told([AtomicPtr<AtomicU64>; 3]);

const SIZE_BITS: u32 = 48;
const MOST: u64 = (1 << SIZE_BITS) - 2;

impl Told {
    fn entry(&self, kind: Kind, id: i32) -> Option<&AtomicU64> {
        let place = &self.0[kind as usize];
        let mut known = place.load(Acquire);
        if known.is_null() {
            // Zeros take no memory until they are used.
            let zeros = Box::into_raw(vec![0u64; SLOTS as usize].into_boxed_slice());
            let made = zeros.cast::<AtomicU64>();
            known = match place.compare_exchange(known, made, AcqRel, Acquire) {
                Ok(_) => made,
                Err(others) => {
                    // SAFETY: from `into_raw`, and nobody has seen it.
                    drop(unsafe { Box::from_raw(zeros) });
                    others
                }
            };
        }
        // SAFETY: so many integers, as which atomics are laid out; they are never freed.
        let entries = unsafe { std::slice::from_raw_parts(known, SLOTS as usize) };
        entries.get((id as u64 % SLOTS) as usize)
    }

    /// The program is told an object's size.
    pub fn tell(&self, kind: Kind, id: i32, size: u64) {
        if let Some(entry) = self.entry(kind, id) {
            let sequence = id as u64 / SLOTS;
            entry.store(sequence << SIZE_BITS | (size.min(MOST) + 1), Relaxed);
        }
    }

    /// Fails if the object is larger than it was.
    pub fn check(&self, kind: Kind, id: i32, size: u64) -> Result<()> {
        let known = self.entry(kind, id).map_or(0, |entry| entry.load(Relaxed));
        let same = known != 0 && known >> SIZE_BITS == id as u64 / SLOTS;
        if same && size >= known & (MOST + 1) {
            return Err(CORRUPT);
        }
        self.tell(kind, id, size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_does_not_grow() {
        let told = Told::default();
        let next = 5 + SLOTS as i32;
        assert_eq!(told.check(Kind::Sem, 5, 3), Ok(()));
        assert_eq!(told.check(Kind::Sem, 5, 4), Err(CORRUPT));
        assert_eq!(told.check(Kind::Sem, 5, u64::MAX), Err(CORRUPT));
        assert_eq!(told.check(Kind::Sem, 5, 3), Ok(()));
        assert_eq!(told.check(Kind::Shm, 5, 4), Ok(()));
        assert_eq!(told.check(Kind::Sem, next, 4), Ok(()));
        told.tell(Kind::Sem, next, 9);
        assert_eq!(told.check(Kind::Sem, next, 9), Ok(()));
        assert_eq!(told.check(Kind::Sem, next, 2), Ok(()));
        assert_eq!(told.check(Kind::Sem, next, 9), Err(CORRUPT));
    }
}
