// SPDX-License-Identifier: MIT OR Apache-2.0
//! The standard library's reader-writer lock: what read-copy update replaces. A writer keeps
//! readers out while it unlinks a node, so that the node can be freed right after; its "grace
//! period" is the time it takes to get the lock. The writer allocates before it takes the lock, and
//! frees when it has released it.

use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer};
use crate::clock;
use crate::error::Result;
use crate::table::{Node, Table, free};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

#[derive(Default)]
pub struct Locked(RwLock<()>);

impl Peer for Locked {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(InSections(table, Reading(&self.0)))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Locking(&self.0, table))
    }
}

struct Locking<'a>(&'a RwLock<()>, &'a Table);

struct Reading<'a>(&'a RwLock<()>);

// SAFETY: a node is freed when it has been unlinked under the writer's lock.
unsafe impl Sections for Reading<'_> {
    type Section<'a>
        = RwLockReadGuard<'a, ()>
    where
        Self: 'a;

    #[inline(always)]
    fn enter(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    fn load(_: &RwLockReadGuard<'_, ()>, from: &AtomicPtr<Node>) -> *mut Node {
        from.load(Relaxed)
    }
}

impl Writer for Locking<'_> {
    fn replace(&mut self, key: u64) {
        let copy = self.1.copy(key);
        let held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let old = copy.publish();
        drop(held);
        // SAFETY: there were no readers while the lock was held, and none holds a reference.
        unsafe { free(old) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let copy = self.1.copy(key);
        let start = clock::now();
        let held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let locked = clock::now();
        let old = copy.publish();
        drop(held);
        // SAFETY: as above.
        unsafe { free(old) };
        Ok(Duration::from_nanos(locked - start))
    }

    fn drain(&mut self) {}
}
