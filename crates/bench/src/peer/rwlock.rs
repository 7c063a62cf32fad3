// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader-writer locks: what read-copy update replaces. A writer keeps readers out while it unlinks
//! a node, so that the node can be freed right after; its "grace period" is the time it takes to
//! get the lock. The writer allocates before it takes the lock, and frees when it has released it.

use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer};
use crate::clock;
use crate::error::Result;
use crate::table::{Node, Table, free};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub trait Lock: Sync + Default {
    type Held<'a>
    where
        Self: 'a;

    fn read(&self) -> Self::Held<'_>;
    fn write<R>(&self, f: impl FnOnce() -> R) -> R;
}

impl Lock for std::sync::RwLock<()> {
    type Held<'a> = std::sync::RwLockReadGuard<'a, ()>;

    #[inline(always)]
    fn read(&self) -> Self::Held<'_> {
        std::sync::RwLock::read(self).unwrap_or_else(|e| e.into_inner())
    }

    fn write<R>(&self, f: impl FnOnce() -> R) -> R {
        let _held = std::sync::RwLock::write(self).unwrap_or_else(|e| e.into_inner());
        f()
    }
}

impl Lock for parking_lot::RwLock<()> {
    type Held<'a> = parking_lot::RwLockReadGuard<'a, ()>;

    #[inline(always)]
    fn read(&self) -> Self::Held<'_> {
        parking_lot::RwLock::read(self)
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
        Box::new(InSections(table, Reading(&self.0)))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Locking(&self.0, table))
    }
}

struct Locking<'a, L>(&'a L, &'a Table);

struct Reading<'a, L>(&'a L);

// SAFETY: a node is freed when it has been unlinked under the writer's lock.
unsafe impl<L: Lock> Sections for Reading<'_, L> {
    type Section<'a>
        = L::Held<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn enter(&self) -> L::Held<'_> {
        self.0.read()
    }

    #[inline(always)]
    fn load(_: &L::Held<'_>, from: &AtomicPtr<Node>) -> *mut Node {
        from.load(Relaxed)
    }
}

impl<L: Lock> Writer for Locking<'_, L> {
    fn replace(&mut self, key: u64) {
        let copy = self.1.copy(key);
        let old = self.0.write(|| copy.publish());
        // SAFETY: there were no readers while the lock was held, and none holds a reference.
        unsafe { free(old) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        let copy = self.1.copy(key);
        let start = clock::now();
        let (locked, old) = self.0.write(|| (clock::now(), copy.publish()));
        // SAFETY: as above.
        unsafe { free(old) };
        Ok(Duration::from_nanos(locked - start))
    }

    fn drain(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::{Mutex, OnceLock};

    /// Counts what is freed while it is held.
    #[derive(Default)]
    struct Probe {
        lock: Mutex<()>,
        table: OnceLock<Table>,
        freed: AtomicU64,
    }

    impl Lock for Probe {
        type Held<'a> = ();

        fn read(&self) {}

        fn write<R>(&self, f: impl FnOnce() -> R) -> R {
            let _held = self.lock.lock().unwrap();
            let freed = || self.table.get().unwrap().ledger().freed();
            let before = freed();
            let result = f();
            self.freed.fetch_add(freed() - before, Relaxed);
            result
        }
    }

    /// Nobody who locks with care does it there: readers would wait for the allocator.
    #[test]
    fn a_writer_frees_nothing_while_it_holds_the_lock() {
        let probe = Probe::default();
        let table = probe.table.get_or_init(|| Table::hash(64));
        let mut writer = Locking(&probe, table);
        writer.replace(1);
        writer.replace_and_wait(2).unwrap();
        assert_eq!((table.ledger().freed(), table.ledger().garbage()), (2, 0));
        assert_eq!(probe.freed.load(Relaxed), 0);
    }
}
