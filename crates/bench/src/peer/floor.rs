// SPDX-License-Identifier: MIT OR Apache-2.0
//! No protection at all, in Rust and in C: the cost of the loops themselves, and the difference
//! between the two compilers. Nothing is freed while there are readers, so this is sound, and
//! useless.

use super::{Peer, Reader, Writer, find, lookups, repeat, walk, wrong};
use crate::error::Result;
use crate::table::{Chains, Node, Table, free};
use std::hint::black_box;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

pub struct Rust;
pub struct C;

unsafe extern "C" {
    fn reprieve_bench_floor_empty(n: u64);
    fn reprieve_bench_floor_lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_floor_gets(chains: *const Chains, n: u64) -> u64;
    fn reprieve_bench_floor_walks(chains: *const Chains, sum: u64, n: u64) -> u64;
}

impl Peer for Rust {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(RustReader(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Keeper(table, vec![]))
    }
}

impl Peer for C {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(CReader(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Keeper(table, vec![]))
    }
}

struct RustReader<'a>(&'a Table);

impl Reader for RustReader<'_> {
    fn empty(&mut self, n: u64) {
        for i in 0..n {
            black_box(i);
        }
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: nothing is freed before the readers are gone.
        lookups(self.0, seed, n, |head, key| unsafe { find(head, key, |p| p.load(Acquire)) })
    }

    fn gets(&mut self, n: u64) -> u64 {
        let head = self.0.head(0);
        // SAFETY: as above.
        repeat(n, || unsafe { wrong(head, |p| p.load(Acquire)) })
    }

    fn walks(&mut self, n: u64) -> u64 {
        let (head, sum) = (self.0.head(0), self.0.sum());
        // SAFETY: as above.
        repeat(n, || unsafe { walk(head, |p| p.load(Acquire)) } != sum)
    }
}

struct CReader<'a>(&'a Table);

impl Reader for CReader<'_> {
    fn empty(&mut self, n: u64) {
        // SAFETY: no preconditions.
        unsafe { reprieve_bench_floor_empty(n) };
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: the table has the layout that C expects; nothing is freed before the readers are
        // gone.
        unsafe { reprieve_bench_floor_lookups(self.0.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: as above.
        unsafe { reprieve_bench_floor_gets(self.0.chains(), n) }
    }

    fn walks(&mut self, n: u64) -> u64 {
        // SAFETY: as above.
        unsafe { reprieve_bench_floor_walks(self.0.chains(), self.0.sum(), n) }
    }
}

/// Keeps replaced nodes until the end.
struct Keeper<'a>(&'a Table, Vec<*mut Node>);

impl Writer for Keeper<'_> {
    fn replace(&mut self, key: u64) {
        self.1.push(self.0.replace(key, false));
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        Ok(Duration::ZERO)
    }

    fn drain(&mut self) {
        for node in self.1.drain(..) {
            // SAFETY: unlinked; the readers are gone.
            unsafe { free(node) };
        }
    }
}
