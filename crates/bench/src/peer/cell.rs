// SPDX-License-Identifier: MIT OR Apache-2.0
//! This project's `Cell`, by each read side, with the payload that arc-swap has. A copy is one of
//! 16 bytes: key and value.

use super::side::Enter;
use super::{Peer, Reader, Writer, drain, repeat, wait};
use crate::error::Result;
use crate::table::{Table, value_of};
use reprieve::structures::Cell;
use std::hint::black_box;
use std::marker::PhantomData;
use std::time::Duration;

/// The content of a node of the table.
pub struct Entry {
    key: u64,
    value: u64,
    _rest: [usize; 6],
}

/// The part that readers copy.
#[derive(Clone, Copy)]
pub struct Pair {
    key: u64,
    value: u64,
}

/// A payload for the key 0.
pub trait Payload: Send + Sync + 'static {
    fn new() -> Self;
}

impl Payload for Entry {
    fn new() -> Entry {
        Entry { key: 0, value: value_of(0), _rest: [0; 6] }
    }
}

impl Payload for Pair {
    fn new() -> Pair {
        Pair { key: 0, value: value_of(0) }
    }
}

/// References in sections.
pub struct Loaded<E>(Cell<Entry>, PhantomData<fn() -> E>);
/// Protected references.
pub struct Protected(Cell<Entry>);
/// Copies by restartable lookups.
pub struct Copied(Cell<Pair>);

impl<E> Default for Loaded<E> {
    fn default() -> Self {
        Loaded(Cell::new(Entry::new()), PhantomData)
    }
}

impl Default for Protected {
    fn default() -> Self {
        Protected(Cell::new(Entry::new()))
    }
}

impl Default for Copied {
    fn default() -> Self {
        Copied(Cell::new(Pair::new()))
    }
}

impl<E: Enter> Peer for Loaded<E> {
    fn reader<'a>(&'a self, _: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Loader(&self.0, E::new()))
    }

    fn writer<'a>(&'a self, _: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Storer(&self.0))
    }
}

impl Peer for Protected {
    fn reader<'a>(&'a self, _: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Protector(&self.0))
    }

    fn writer<'a>(&'a self, _: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Storer(&self.0))
    }
}

impl Peer for Copied {
    fn reader<'a>(&'a self, _: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Copier(&self.0))
    }

    fn writer<'a>(&'a self, _: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Storer(&self.0))
    }
}

struct Loader<'a, E>(&'a Cell<Entry>, E);

impl<E: Enter> Reader for Loader<'_, E> {
    fn gets(&mut self, n: u64) -> u64 {
        let bad = repeat(n, || {
            let guard = self.1.enter();
            let entry = self.0.load(&guard);
            entry.value != value_of(entry.key)
        });
        self.1.after();
        bad
    }
}

struct Protector<'a>(&'a Cell<Entry>);

impl Reader for Protector<'_> {
    fn gets(&mut self, n: u64) -> u64 {
        repeat(n, || {
            let entry = black_box(self.0.protect());
            entry.value != value_of(entry.key)
        })
    }
}

struct Copier<'a>(&'a Cell<Pair>);

impl Reader for Copier<'_> {
    fn gets(&mut self, n: u64) -> u64 {
        repeat(n, || {
            let pair = self.0.get();
            pair.value != value_of(pair.key)
        })
    }
}

struct Storer<'a, T>(&'a Cell<T>);

impl<T: Payload> Writer for Storer<'_, T> {
    fn replace(&mut self, _: u64) {
        self.0.store(T::new());
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        wait()
    }

    fn drain(&mut self) {
        drain();
    }
}
