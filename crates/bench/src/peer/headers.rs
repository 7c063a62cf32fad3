// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same read sides as `reprieve.rs` through the headers for C (`c/reprieve.c`). Updates are
//! Rust's: a writer is not what is measured.

use super::reprieve::{Retirer, Watcher};
use super::{Peer, Reader, Writer};
use crate::table::{Chains, Table};
use reprieve::abi;
use std::ffi::c_uint;
use std::marker::PhantomData;

pub struct Plain;
pub struct Restart;
pub struct Protect;
pub struct Qsbr;

unsafe extern "C" {
    fn reprieve_bench_plain_empty(n: u64);
    fn reprieve_bench_plain_lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_plain_gets(chains: *const Chains, n: u64) -> u64;
    fn reprieve_bench_plain_walks(chains: *const Chains, sum: u64, n: u64) -> u64;
    fn reprieve_bench_online_empty(n: u64);
    fn reprieve_bench_online_lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_online_announced(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_online_gets(chains: *const Chains, n: u64) -> u64;
    fn reprieve_bench_online_walks(chains: *const Chains, sum: u64, n: u64) -> u64;
    fn reprieve_bench_restart_empty(n: u64);
    fn reprieve_bench_restart_lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_restart_gets(chains: *const Chains, n: u64) -> u64;
    fn reprieve_bench_protect_lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
    fn reprieve_bench_protect_gets(chains: *const Chains, n: u64) -> u64;
}

/// Functions that the headers do not inline. `reprieve-capi` has the same functions; its library
/// cannot be linked beside the crate, whose state it has of its own.
mod slow {
    use super::{abi, c_uint};

    #[unsafe(no_mangle)]
    extern "C" fn reprieve_read_lock_slow() {
        abi::enter(abi::GLOBAL);
    }

    #[unsafe(no_mangle)]
    extern "C" fn reprieve_read_unlock_slow() {
        // SAFETY: `c/reprieve.c` leaves what it has entered.
        unsafe { abi::leave(abi::GLOBAL) };
    }

    /// `reprieve-capi` has a domain of its own for this; here the nodes are the default domain's.
    #[unsafe(no_mangle)]
    extern "C" fn reprieve_qsbr_quiescent_state_slow() {
        // SAFETY: `Online` has entered the section, and no guard lives while C reads.
        unsafe { abi::quiesce(abi::GLOBAL) };
    }

    #[unsafe(no_mangle)]
    extern "C" fn reprieve_restart_slow(attempt: c_uint) -> usize {
        abi::restart(attempt)
    }

    #[unsafe(no_mangle)]
    extern "C" fn reprieve_fallback() {
        abi::count_fallback();
        abi::enter(abi::GLOBAL);
    }

    #[unsafe(no_mangle)]
    extern "C" fn reprieve_slot_slow() -> *mut usize {
        abi::slot().cast_mut().cast()
    }
}

impl Peer for Plain {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Sections(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retirer(table))
    }
}

impl Peer for Qsbr {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Online::new(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retirer(table))
    }
}

impl Peer for Restart {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Restarter(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Retirer(table))
    }
}

impl Peer for Protect {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        Box::new(Protector(table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Watcher(table))
    }
}

struct Sections<'a>(&'a Table);

// SAFETY for all calls below: the table has the layout that C expects; its nodes are retired with
// their addresses, in the default domain.
impl Reader for Sections<'_> {
    fn empty(&mut self, n: u64) {
        // SAFETY: see above.
        unsafe { reprieve_bench_plain_empty(n) };
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_plain_lookups(self.0.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_plain_gets(self.0.chains(), n) }
    }

    fn walks(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_plain_walks(self.0.chains(), self.0.sum(), n) }
    }
}

/// Online until it is dropped. Not `Send`.
struct Online<'a>(&'a Table, PhantomData<*mut ()>);

impl<'a> Online<'a> {
    fn new(table: &'a Table) -> Online<'a> {
        abi::enter(abi::GLOBAL);
        abi::announce_in_line(abi::GLOBAL);
        Online(table, PhantomData)
    }
}

impl Drop for Online<'_> {
    fn drop(&mut self) {
        // SAFETY: entered by `new`, in this thread.
        unsafe { abi::leave(abi::GLOBAL) };
    }
}

impl Reader for Online<'_> {
    fn empty(&mut self, n: u64) {
        // SAFETY: see above.
        unsafe { reprieve_bench_online_empty(n) };
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_online_lookups(self.0.chains(), seed, n) }
    }

    fn announced(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_online_announced(self.0.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_online_gets(self.0.chains(), n) }
    }

    fn walks(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_online_walks(self.0.chains(), self.0.sum(), n) }
    }
}

struct Restarter<'a>(&'a Table);

impl Reader for Restarter<'_> {
    fn empty(&mut self, n: u64) {
        // SAFETY: see above.
        unsafe { reprieve_bench_restart_empty(n) };
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_restart_lookups(self.0.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_restart_gets(self.0.chains(), n) }
    }
}

struct Protector<'a>(&'a Table);

impl Reader for Protector<'_> {
    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_protect_lookups(self.0.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { reprieve_bench_protect_gets(self.0.chains(), n) }
    }
}
