// SPDX-License-Identifier: MIT OR Apache-2.0
//! seize (Hyaline), with a collector of its own per sample and the default batch size, except where
//! a single grace period is timed.

use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer, await_frees};
use crate::clock;
use crate::error::Result;
use crate::table::{Node, Table, free, next_seed};
use seize::{Collector, Guard, LocalGuard};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::time::Duration;

#[derive(Default)]
pub struct Seize {
    collector: Collector,
    readers: AtomicU64,
}

impl Seize {
    /// Batches grow until they are flushed: with the default size a batch may go before it has as
    /// many nodes as there are threads, and the rest waits for more nodes to come, which is no
    /// grace period.
    pub fn flushed() -> Seize {
        Seize { collector: Collector::new().batch_size(1024), readers: AtomicU64::new(0) }
    }
}

impl Peer for Seize {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        self.readers.fetch_add(1, Relaxed);
        Box::new(InSections(table, Entering(&self.collector)))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retiring { peer: self, table, seed: 1 })
    }
}

struct Entering<'a>(&'a Collector);

// SAFETY: nodes are freed through the collector.
unsafe impl Sections for Entering<'_> {
    type Section<'a>
        = LocalGuard<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn enter(&self) -> LocalGuard<'_> {
        self.0.enter()
    }

    #[inline(always)]
    fn load(section: &LocalGuard<'_>, from: &AtomicPtr<Node>) -> *mut Node {
        section.protect(from, Acquire)
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
        let batch = self.peer.readers.load(Relaxed) + 2;
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
