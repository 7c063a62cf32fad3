// SPDX-License-Identifier: MIT OR Apache-2.0
//! seize (Hyaline), with a collector of its own per sample and the default batch size, except where
//! a single grace period is timed.

use super::{Peer, Reader, Writer, await_frees, find, lookups, repeat, walk, wrong};
use crate::clock;
use crate::error::Result;
use crate::table::{Node, Table, free, next_seed};
use seize::{Collector, Guard};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

#[derive(Default)]
pub struct Seize {
    collector: Collector,
    readers: AtomicU64,
    /// At a time: readers may come and go.
    most: AtomicU64,
}

impl Seize {
    /// Batches grow until they are flushed: with the default size a batch may go before it has as
    /// many nodes as there are threads, and the rest waits for more nodes to come, which is no
    /// grace period.
    pub fn flushed() -> Seize {
        Seize {
            collector: Collector::new().batch_size(1024),
            readers: AtomicU64::new(0),
            most: AtomicU64::new(0),
        }
    }
}

impl Peer for Seize {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        let now = self.readers.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        Box::new(Entering(self, table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retiring { peer: self, table, seed: 1 })
    }
}

struct Entering<'a>(&'a Seize, &'a Table);

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Relaxed);
    }
}

impl Reader for Entering<'_> {
    fn empty(&mut self, n: u64) {
        for _ in 0..n {
            drop(self.0.collector.enter());
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        lookups(self.1, seed, n, |head, key| {
            let guard = self.0.collector.enter();
            // SAFETY: loads are protected, and nodes are freed through the collector.
            unsafe { find(head, key, |p| guard.protect(p, Acquire)) }
        })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.1.head(0);
        repeat(n, || {
            let guard = self.0.collector.enter();
            // SAFETY: as above.
            unsafe { wrong(head, |p| guard.protect(p, Acquire)) }
        })
    }

    fn walks(&mut self, n: u64) -> u64 {
        let (head, sum) = (self.1.head(0), self.1.sum());
        repeat(n, || {
            let guard = self.0.collector.enter();
            // SAFETY: as above.
            unsafe { walk(head, |p| guard.protect(p, Acquire)) != sum }
        })
    }
}

struct Retiring<'a> {
    peer: &'a Seize,
    table: &'a Table,
    seed: u64,
}

unsafe fn reclaim(node: *mut Node, _: &Collector) {
    // SAFETY: seize calls this when nobody can see the node any more.
    unsafe { free(node) };
}

impl Writer for Retiring<'_> {
    fn replace(&mut self, key: u64) {
        let guard = self.peer.collector.enter();
        let node = self.table.replace(key, false);
        // SAFETY: unlinked.
        unsafe { guard.defer_retire(node, reclaim) };
    }

    /// A batch is reclaimed as a whole, and only if it has more nodes than there are threads; so
    /// that many are replaced and flushed, and the time runs from the last of them.
    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let ledger = self.table.ledger();
        ledger.stamp_frees();
        let batch = self.peer.most.load(Relaxed) + 2;
        let frees = ledger.freed() + ledger.garbage() + batch;
        self.replace(key);
        for _ in 1..batch {
            self.seed = next_seed(self.seed);
            self.replace(self.table.key(self.seed));
        }
        let start = clock::now();
        await_frees(ledger, frees, start, || self.peer.collector.enter().flush())
    }

    fn drain(&mut self) {
        // SAFETY: the readers are gone, and this thread is outside any section.
        unsafe { self.peer.collector.reclaim_all() };
    }
}
