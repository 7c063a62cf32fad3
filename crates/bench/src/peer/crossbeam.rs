// SPDX-License-Identifier: MIT OR Apache-2.0
//! crossbeam-epoch, in its default collector.

use super::{Peer, Reader, Writer, await_frees, find, lookups, repeat, walk, wrong};
use crate::clock;
use crate::error::Result;
use crate::table::{Node, Table, free};
use crossbeam_epoch::pin;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

pub struct Crossbeam;

impl Peer for Crossbeam {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Pinner(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Pinner(table))
    }
}

struct Pinner<'a>(&'a Table);

impl Reader for Pinner<'_> {
    fn empty(&mut self, n: u64) {
        for _ in 0..n {
            drop(pin());
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        lookups(self.0, seed, n, |head, key| {
            let _pinned = pin();
            // SAFETY: nodes are freed by deferred functions.
            unsafe { find(head, key, |p| p.load(Acquire)) }
        })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.0.head(0);
        repeat(n, || {
            let _pinned = pin();
            // SAFETY: as above.
            unsafe { wrong(head, |p| p.load(Acquire)) }
        })
    }

    fn walks(&mut self, n: u64) -> u64 {
        let (head, sum) = (self.0.head(0), self.0.sum());
        repeat(n, || {
            let _pinned = pin();
            // SAFETY: as above.
            unsafe { walk(head, |p| p.load(Acquire)) != sum }
        })
    }
}

struct Retired(*mut Node);
// SAFETY: an unlinked node may be freed by any thread.
unsafe impl Send for Retired {}

impl Retired {
    unsafe fn free(self) {
        // SAFETY: the caller's promise.
        unsafe { free(self.0) };
    }
}

impl Writer for Pinner<'_> {
    fn replace(&mut self, key: u64) {
        let guard = pin();
        let node = Retired(self.0.replace(key, false));
        // SAFETY: unlinked.
        unsafe { guard.defer_unchecked(move || node.free()) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let ledger = self.0.ledger();
        ledger.stamp_frees();
        let frees = ledger.freed() + 1;
        self.replace(key);
        let start = clock::now();
        await_frees(ledger, frees, start, || pin().flush())
    }

    fn drain(&mut self) {
        pin().flush();
    }
}
