// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same read sides as `reprieve.rs` through the headers for C (`c/reprieve.c`). Updates are
//! Rust's: a writer is not what is measured.

use super::c::{InC, Loops};
use super::reprieve::{Retirer, Watcher};
use super::{Peer, Reader, Writer};
use crate::table::Table;
use reprieve::abi;
use std::ffi::c_uint;
use std::marker::PhantomData;

pub struct Plain;
pub struct Restart;
pub struct Protect;
pub struct Qsbr;

unsafe extern "C" {
    safe static reprieve_bench_plain_loops: Loops;
    safe static reprieve_bench_online_loops: Loops;
    safe static reprieve_bench_restart_loops: Loops;
    safe static reprieve_bench_protect_loops: Loops;
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

// SAFETY for all readers below: nodes are retired with their addresses, in the default domain.
macro_rules! peer {
    ($($name:ident, $loops:ident, $needs:expr, $writer:ident;)*) => { $(
        impl Peer for $name {
            fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
                // SAFETY: see above.
                Box::new(unsafe { InC::new(&$loops, table, $needs) })
            }

            fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
                Box::new($writer(table))
            }
        }
    )* };
}
peer! {
    Plain, reprieve_bench_plain_loops, (), Retirer;
    Qsbr, reprieve_bench_online_loops, Online::new(), Retirer;
    Restart, reprieve_bench_restart_loops, (), Retirer;
    Protect, reprieve_bench_protect_loops, (), Watcher;
}

/// This thread is online until this is dropped. Not `Send`.
struct Online(PhantomData<*mut ()>);

impl Online {
    fn new() -> Online {
        abi::enter(abi::GLOBAL);
        abi::announce_in_line(abi::GLOBAL);
        Online(PhantomData)
    }
}

impl Drop for Online {
    fn drop(&mut self) {
        // SAFETY: entered by `new`, in this thread.
        unsafe { abi::leave(abi::GLOBAL) };
    }
}
