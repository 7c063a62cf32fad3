// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader-writer locks: what read-copy update replaces. A writer keeps readers out, so what it
//! unlinks can be freed at once; its "grace period" is the time it takes to get the lock.

use super::{Peer, Reader, Writer, find, lookups, repeat, walk, wrong};
use crate::clock;
use crate::error::Result;
use crate::table::{Table, free};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub trait Lock: Sync + Default {
    fn read<R>(&self, f: impl FnOnce() -> R) -> R;
    fn write<R>(&self, f: impl FnOnce() -> R) -> R;
}

impl Lock for std::sync::RwLock<()> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = std::sync::RwLock::read(self).unwrap_or_else(|e| e.into_inner());
        f()
    }

    fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = std::sync::RwLock::write(self).unwrap_or_else(|e| e.into_inner());
        f()
    }
}

impl Lock for parking_lot::RwLock<()> {
    #[inline(always)]
    fn read<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = parking_lot::RwLock::read(self);
        f()
    }

    fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = parking_lot::RwLock::write(self);
        f()
    }
}

#[derive(Default)]
pub struct Locked<L>(L);

impl<L: Lock> Peer for Locked<L> {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Locking(&self.0, table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Locking(&self.0, table))
    }
}

struct Locking<'a, L>(&'a L, &'a Table);

impl<L: Lock> Reader for Locking<'_, L> {
    fn empty(&mut self, n: u64) {
        for _ in 0..n {
            self.0.read(|| ());
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        lookups(self.1, seed, n, |head, key| {
            // SAFETY: nodes are freed under the writer's lock.
            self.0.read(|| unsafe { find(head, key, |p| p.load(Relaxed)) })
        })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.1.head(0);
        // SAFETY: as above.
        repeat(n, || self.0.read(|| unsafe { wrong(head, |p| p.load(Relaxed)) }))
    }

    fn walks(&mut self, n: u64) -> u64 {
        let (head, sum) = (self.1.head(0), self.1.sum());
        // SAFETY: as above.
        repeat(n, || self.0.read(|| unsafe { walk(head, |p| p.load(Relaxed)) }) != sum)
    }
}

impl<L: Lock> Writer for Locking<'_, L> {
    fn replace(&mut self, key: u64) {
        // SAFETY: there are no readers while the lock is held, and none that holds a reference.
        self.0.write(|| unsafe { free(self.1.replace(key, false)) });
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let start = clock::now();
        let locked = self.0.write(|| {
            let locked = clock::now();
            // SAFETY: as above.
            unsafe { free(self.1.replace(key, false)) };
            locked
        });
        Ok(Duration::from_nanos(locked - start))
    }

    fn drain(&mut self) {}
}
