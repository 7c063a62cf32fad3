// SPDX-License-Identifier: MIT OR Apache-2.0
//! arc-swap: it protects one pointer, so it takes part where one pointer is read. It has a payload
//! of its own, equal to a node's.

use super::{Peer, Reader, Writer, repeat};
use crate::error::Result;
use crate::table::{Table, value_of};
use arc_swap::ArcSwap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Entry {
    key: u64,
    value: u64,
    _rest: [usize; 6],
}

impl Entry {
    fn new(key: u64) -> Arc<Entry> {
        Arc::new(Entry { key, value: value_of(key), _rest: [0; 6] })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A freed node holds this value, too.
        self.value = black_box(0);
    }
}

pub struct Swapped(ArcSwap<Entry>);

impl Default for Swapped {
    fn default() -> Swapped {
        Swapped(ArcSwap::new(Entry::new(0)))
    }
}

impl Peer for Swapped {
    fn reader<'a>(&'a self, _: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Loading(&self.0))
    }

    fn writer<'a>(&'a self, _: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Loading(&self.0))
    }
}

struct Loading<'a>(&'a ArcSwap<Entry>);

impl Reader for Loading<'_> {
    fn gets(&mut self, n: u64) -> u64 {
        repeat(n, || {
            let entry = black_box(self.0.load());
            entry.value != value_of(entry.key)
        })
    }
}

impl Writer for Loading<'_> {
    fn replace(&mut self, key: u64) {
        self.0.store(Entry::new(key));
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let start = Instant::now();
        self.replace(key);
        Ok(start.elapsed())
    }

    fn drain(&mut self) {}
}
