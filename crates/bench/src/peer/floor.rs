// SPDX-License-Identifier: MIT OR Apache-2.0
//! No protection at all, in Rust and in C: the cost of the loops themselves, and the difference
//! between the two compilers. Nothing is freed while there are readers, so this is sound, and
//! useless.

use super::c::{InC, Loops};
use super::side::{InSections, Sections};
use super::{Peer, Reader, Writer};
use crate::error::Result;
use crate::table::{Node, Table, free};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

pub struct Rust;
pub struct C;

unsafe extern "C" {
    safe static reprieve_bench_floor_loops: Loops;
}

impl Peer for Rust {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(InSections(table, Nothing))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Keeper::of(table))
    }
}

impl Peer for C {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        // SAFETY: nothing is freed before the readers are gone.
        Box::new(unsafe { InC::new(&reprieve_bench_floor_loops, table, ()) })
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Keeper::of(table))
    }
}

struct Nothing;

// SAFETY: nothing is freed before the readers are gone.
unsafe impl Sections for Nothing {
    type Section<'a> = ();

    #[inline(always)]
    fn enter(&self) {}

    #[inline(always)]
    fn load(_: &(), from: &AtomicPtr<Node>) -> *mut Node {
        from.load(Acquire)
    }

    #[inline(always)]
    fn empty(&mut self) {
        black_box(());
    }
}

/// Frees a replaced node `lag` updates later, whoever reads it.
pub struct Keeper<'a> {
    table: &'a Table,
    old: VecDeque<*mut Node>,
    lag: usize,
}

impl<'a> Keeper<'a> {
    /// Keeps replaced nodes until the readers are gone.
    fn of(table: &'a Table) -> Keeper<'a> {
        Keeper { table, old: VecDeque::new(), lag: usize::MAX }
    }

    /// For a table that has no readers.
    pub fn unread(table: &'a Table, lag: usize) -> Keeper<'a> {
        Keeper { lag, ..Keeper::of(table) }
    }

    fn shrink(&mut self, to: usize) {
        let many = self.old.len().saturating_sub(to);
        for node in self.old.drain(..many) {
            // SAFETY: unlinked; nobody reads the table, or the readers are gone.
            unsafe { free(node) };
        }
    }
}

impl Writer for Keeper<'_> {
    fn replace(&mut self, key: u64) {
        self.old.push_back(self.table.replace(key, false));
        self.shrink(self.lag);
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        Ok(Duration::ZERO)
    }

    fn drain(&mut self) {
        self.shrink(0);
    }
}
