// SPDX-License-Identifier: MIT OR Apache-2.0
//! This project's `Cell`, by each read side, with the payload that arc-swap has. A copy is one of
//! 16 bytes: key and value.

use super::side::Enter;
use super::{Peer, Reader, Writer, repeat};
use crate::table::{Table, value_of};
use reprieve::structures::Cell;
use std::hint::black_box;
use std::marker::PhantomData;

/// The content of a node of the table, with so many words more than the key 0 and its value.
#[derive(Clone, Copy)]
pub struct Entry<const MORE: usize> {
    key: u64,
    value: u64,
    _more: [usize; MORE],
}

impl<const MORE: usize> Entry<MORE> {
    fn new() -> Entry<MORE> {
        Entry { key: 0, value: value_of(0), _more: [0; MORE] }
    }

    fn wrong(&self) -> bool {
        self.value != value_of(self.key)
    }
}

/// How a cell is read.
pub trait Read<const MORE: usize> {
    /// The calling thread's way to read.
    fn new() -> Self;
    /// Whether the content is wrong.
    fn wrong(&self, cell: &Cell<Entry<MORE>>) -> bool;
    /// Ends a batch (QSBR: a quiescent state).
    fn after(&mut self) {}
}

/// References in sections.
pub struct Sections<E>(E);
/// Protected references.
pub struct Protected;
/// Copies by restartable lookups.
pub struct Copied;

impl<E: Enter> Read<6> for Sections<E> {
    fn new() -> Self {
        Sections(E::new())
    }

    #[inline(always)]
    fn wrong(&self, cell: &Cell<Entry<6>>) -> bool {
        let guard = self.0.enter();
        cell.load(&guard).wrong()
    }

    fn after(&mut self) {
        self.0.after();
    }
}

impl Read<6> for Protected {
    fn new() -> Protected {
        Protected
    }

    #[inline(always)]
    fn wrong(&self, cell: &Cell<Entry<6>>) -> bool {
        black_box(cell.protect()).wrong()
    }
}

impl Read<0> for Copied {
    fn new() -> Copied {
        Copied
    }

    #[inline(always)]
    fn wrong(&self, cell: &Cell<Entry<0>>) -> bool {
        cell.get().wrong()
    }
}

/// A cell, read in that way.
pub struct Celled<R, const MORE: usize>(Cell<Entry<MORE>>, PhantomData<fn() -> R>);

impl<R, const MORE: usize> Default for Celled<R, MORE> {
    fn default() -> Self {
        Celled(Cell::new(Entry::new()), PhantomData)
    }
}

impl<R: Read<MORE>, const MORE: usize> Peer for Celled<R, MORE> {
    fn reader<'a>(&'a self, _: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Loader(&self.0, R::new()))
    }

    fn writer<'a>(&'a self, _: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Storer(&self.0))
    }
}

struct Loader<'a, R, const MORE: usize>(&'a Cell<Entry<MORE>>, R);

impl<R: Read<MORE>, const MORE: usize> Reader for Loader<'_, R, MORE> {
    fn gets(&mut self, n: u64) -> u64 {
        let bad = repeat(n, || self.1.wrong(self.0));
        self.1.after();
        bad
    }
}

struct Storer<'a, const MORE: usize>(&'a Cell<Entry<MORE>>);

impl<const MORE: usize> Writer for Storer<'_, MORE> {
    fn replace(&mut self, _: u64) {
        self.0.store(Entry::new());
    }
}
