// SPDX-License-Identifier: MIT OR Apache-2.0
//! `List<T>`, in sections.

use super::side::Enter;
use super::{Peer, Reader, Writer, repeat};
use crate::table::{Table, value_of};
use reprieve::structures::List;
use std::marker::PhantomData;
use std::sync::OnceLock;

pub struct Owned<E>(OnceLock<List<(u64, u64)>>, PhantomData<fn() -> E>);

impl<E> Default for Owned<E> {
    fn default() -> Self {
        Owned(OnceLock::new(), PhantomData)
    }
}

impl<E> Owned<E> {
    fn list(&self, table: &Table) -> &List<(u64, u64)> {
        self.0.get_or_init(|| {
            let list = List::new();
            (0..table.keys()).for_each(|key| list.push_front((key, value_of(key))));
            list
        })
    }
}

impl<E: Enter> Peer for Owned<E> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(OwnedReader(self.list(table), table.sum(), E::new()))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(OwnedWriter(self.list(table)))
    }
}

struct OwnedReader<'a, E>(&'a List<(u64, u64)>, u64, E);

impl<E: Enter> Reader for OwnedReader<'_, E> {
    fn walks(&mut self, n: u64) -> u64 {
        let bad = repeat(n, || {
            let guard = self.2.enter();
            self.0.iter_in(&guard).fold(0u64, |sum, (_, value)| sum.wrapping_add(*value)) != self.1
        });
        self.2.after();
        bad
    }
}

struct OwnedWriter<'a>(&'a List<(u64, u64)>);

impl Writer for OwnedWriter<'_> {
    fn replace(&mut self, key: u64) {
        self.0.replace_first(|(k, _)| *k == key, |&(key, _)| (key, value_of(key)));
    }
}
