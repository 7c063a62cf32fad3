// SPDX-License-Identifier: MIT OR Apache-2.0
//! HP-BRCU, after the published algorithm (Kim, Jung, Kang, "Expediting Hazard Pointers with
//! Bounded RCU Critical Sections", SPAA 2024). `c/brcu.c` has the readers.
//!
//! A retired node is freed when its epoch is two epochs old, and no reader has the node as its
//! checkpoint. Sections of an older epoch hold the epoch up. When several batches of nodes wait,
//! the writer signals those sections' threads, which roll back to their checkpoints, and advances
//! the epoch.
//!
//! The paper takes a signal to be handled when the call that sends it returns. Linux does not
//! promise that of a thread that runs on another CPU. A membarrier after the signals makes up for
//! it: it interrupts that CPU, and the thread handles the signal on its way back to user mode.

use super::{Peer, Reader, Writer};
use crate::error::Result;
use crate::table::{Chains, Node, Table, free};
use std::collections::VecDeque;
use std::ffi::{c_int, c_ulong};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Nodes in a batch, after which the writer tries to advance the epoch.
const BATCH: usize = 64;
/// Batches that wait before the writer sends signals.
const PATIENCE: usize = 4;
/// Epochs after which no section has a node.
const EPOCHS: u64 = 2;

/// The part of a reader that the writer reads.
#[repr(C)]
struct Shown {
    status: AtomicU64,
    shields: [AtomicPtr<Node>; 2],
    epoch: *const AtomicU64,
}

unsafe extern "C" {
    static reprieve_bench_brcu_size: c_ulong;
    fn reprieve_bench_brcu_handle(number: c_int) -> c_int;
    fn reprieve_bench_brcu_attach(reader: *mut Shown);
    fn reprieve_bench_brcu_lookups(
        reader: *mut Shown,
        chains: *const Chains,
        seed: *mut u64,
        n: u64,
    ) -> u64;
}

/// A reader and its thread.
struct Registered(*mut Shown, libc::pthread_t);

// SAFETY: the writer reads the atomics, under the lock under which a reader leaves.
unsafe impl Send for Registered {}

pub struct Brcu {
    epoch: Box<AtomicU64>,
    readers: Mutex<Vec<Registered>>,
    signal: c_int,
}

impl Default for Brcu {
    fn default() -> Brcu {
        let signal = libc::SIGUSR2;
        // SAFETY: registrations of this process.
        unsafe {
            assert_eq!(reprieve_bench_brcu_handle(signal), 0);
            let registered = libc::syscall(libc::SYS_membarrier, 1 << 4, 0, 0);
            assert_eq!(registered, 0, "HP-BRCU needs membarrier");
        }
        Brcu { epoch: Box::new(AtomicU64::new(EPOCHS)), readers: Mutex::default(), signal }
    }
}

impl Peer for Brcu {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        // SAFETY: a constant.
        let words = unsafe { reprieve_bench_brcu_size as usize }.div_ceil(128);
        // Cache lines of its own. Zeroes are a reader outside of sections.
        let mut memory = vec![[0u128; 8]; words + 1];
        let shown: *mut Shown = memory.as_mut_ptr().cast();
        // SAFETY: this thread's, until it is dropped here.
        unsafe {
            (*shown).epoch = &raw const *self.epoch;
            reprieve_bench_brcu_attach(shown);
            let thread = libc::pthread_self();
            self.readers.lock().unwrap().push(Registered(shown, thread));
        }
        Box::new(Attached { peer: self, table, shown, _memory: memory })
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retiring { peer: self, table, retired: VecDeque::new() })
    }
}

struct Attached<'a> {
    peer: &'a Brcu,
    table: &'a Table,
    shown: *mut Shown,
    _memory: Vec<[u128; 8]>,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let mut readers = self.peer.readers.lock().unwrap();
        readers.retain(|r| r.0 != self.shown);
        // SAFETY: this thread's. A signal that still comes finds no reader.
        unsafe { reprieve_bench_brcu_attach(std::ptr::null_mut()) };
    }
}

impl Reader for Attached<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: the reader of this thread; nodes are freed by `Retiring`.
        unsafe { reprieve_bench_brcu_lookups(self.shown, self.table.chains(), seed, n) }
    }
}

struct Retiring<'a> {
    peer: &'a Brcu,
    table: &'a Table,
    /// With the epoch in which they were unlinked, oldest first.
    retired: VecDeque<(u64, *mut Node)>,
}

impl Retiring<'_> {
    /// Advances the epoch, unless a section holds it up that is not to be rolled back.
    fn advance(&self, roll_back: bool) {
        let epoch = self.peer.epoch.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let readers = self.peer.readers.lock().unwrap();
        let lags = |r: &&Registered| {
            // SAFETY: registered.
            let status = unsafe { (*r.0).status.load(Ordering::Acquire) };
            status != 0 && status >> 1 != epoch
        };
        let mut lagging = readers.iter().filter(lags).peekable();
        if lagging.peek().is_some() {
            if !roll_back {
                return;
            }
            // SAFETY: registered threads have not ended. The membarrier has no arguments.
            unsafe {
                lagging.for_each(|r| _ = libc::pthread_kill(r.1, self.peer.signal));
                assert_eq!(libc::syscall(libc::SYS_membarrier, 1 << 3, 0, 0), 0);
            }
        }
        self.peer.epoch.store(epoch + 1, Ordering::SeqCst);
    }

    /// Frees what is old enough, and no checkpoint.
    fn collect(&mut self) {
        fence(Ordering::SeqCst);
        let readers = self.peer.readers.lock().unwrap();
        let epoch = self.peer.epoch.load(Ordering::Relaxed);
        let shields: Vec<*mut Node> = readers
            .iter()
            // SAFETY: registered.
            .flat_map(|r| unsafe { &(*r.0).shields })
            .map(|shield| shield.load(Ordering::Acquire))
            .collect();
        drop(readers);
        let old = self.retired.partition_point(|(at, _)| at + EPOCHS <= epoch);
        let keep = |(_, node): &(u64, *mut Node)| {
            let shielded = shields.contains(node);
            if !shielded {
                // SAFETY: no section has it any more, and no reader starts there.
                unsafe { free(*node) };
            }
            shielded
        };
        let kept: Vec<_> = self.retired.drain(..old).filter(keep).collect();
        kept.into_iter().rev().for_each(|node| self.retired.push_front(node));
    }
}

impl Writer for Retiring<'_> {
    fn replace(&mut self, key: u64) {
        let node = self.table.replace(key, true);
        self.retired.push_back((self.peer.epoch.load(Ordering::Relaxed), node));
        if self.retired.len() % BATCH == 0 {
            self.advance(self.retired.len() >= PATIENCE * BATCH);
            self.collect();
        }
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        self.replace(key);
        self.drain();
        Ok(Duration::ZERO)
    }

    fn drain(&mut self) {
        (0..=EPOCHS).for_each(|_| self.advance(true));
        self.collect();
    }
}
