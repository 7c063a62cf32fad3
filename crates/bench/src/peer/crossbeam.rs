// SPDX-License-Identifier: MIT OR Apache-2.0
//! crossbeam-epoch, in its default collector.

use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer, replace_and_await};
use crate::error::Result;
use crate::table::{Node, Table, free};
use crossbeam_epoch::{Guard, pin};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

pub struct Crossbeam;

impl Peer for Crossbeam {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(InSections(table, Pins))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Pinner(table))
    }
}

struct Pinner<'a>(&'a Table);

struct Pins;

// SAFETY: nodes are freed by deferred functions.
unsafe impl Sections for Pins {
    type Section<'a> = Guard;

    #[inline(always)]
    fn enter(&self) -> Guard {
        pin()
    }

    #[inline(always)]
    fn load(_: &Guard, from: &AtomicPtr<Node>) -> *mut Node {
        from.load(Acquire)
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
        replace_and_await(self.0, || self.replace(key), || pin().flush())
    }

    fn drain(&mut self) {
        pin().flush();
    }
}
