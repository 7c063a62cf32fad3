// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readers whose loops are in C.

use super::Reader;
use crate::table::{Chains, Table};

type Seeded = unsafe extern "C" fn(*const Chains, *mut u64, u64) -> u64;

/// `struct loops` of `c/node.h`.
#[repr(C)]
pub struct Loops {
    empty: Option<unsafe extern "C" fn(u64)>,
    lookups: Option<Seeded>,
    gets: Option<unsafe extern "C" fn(*const Chains, u64) -> u64>,
}

/// A reader by those loops. `T` is what the calling thread needs for them.
pub struct InC<'a, T>(&'static Loops, &'a Table, #[allow(dead_code)] T);

impl<'a, T> InC<'a, T> {
    /// # Safety
    /// The table's nodes are freed when no loop of these has them any more.
    pub unsafe fn new(loops: &'static Loops, table: &'a Table, needs: T) -> InC<'a, T> {
        InC(loops, table, needs)
    }
}

impl<T> Reader for InC<'_, T> {
    fn empty(&mut self, n: u64) {
        if let Some(f) = self.0.empty {
            // SAFETY: this thread has what it needs.
            unsafe { f(n) };
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: as above; the table has the layout that C expects; the promise of `new`.
        self.0.lookups.map_or(n, |f| unsafe { f(self.1.chains(), seed, n) })
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: as above.
        self.0.gets.map_or(n, |f| unsafe { f(self.1.chains(), n) })
    }
}
