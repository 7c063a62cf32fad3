// SPDX-License-Identifier: MIT OR Apache-2.0
//! liburcu's flavors, through the functions of `c/functions.h`.

use super::c::{InC, Loops};
use super::{Peer, Reader, Writer, wait_and_free};
use crate::error::Result;
use crate::subject::Flavor;
use crate::table::{Node, Table};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::time::Duration;

/// `struct functions` of `c/functions.h`: everything of one flavor.
#[repr(C)]
pub struct Functions {
    loops: &'static Loops,
    pub register: unsafe extern "C" fn(c_int),
    pub unregister: unsafe extern "C" fn(),
    synchronize: unsafe extern "C" fn(),
    pub retire: unsafe extern "C" fn(*mut Node),
    pub barrier: unsafe extern "C" fn(),
    pub per_cpu: unsafe extern "C" fn() -> c_int,
    pub no_per_cpu: unsafe extern "C" fn(),
    pub slot_size: unsafe extern "C" fn() -> u64,
    pub register_slots: unsafe extern "C" fn(*mut c_void, u64),
    pub check_slots: unsafe extern "C" fn(*const c_void, u64) -> u64,
    pub lfht_new: unsafe extern "C" fn() -> *mut c_void,
    pub lfht_lookups: unsafe extern "C" fn(*mut c_void, *mut u64, u64, u64) -> u64,
    pub lfht_insert: unsafe extern "C" fn(*mut c_void, u64) -> c_int,
    pub lfht_remove: unsafe extern "C" fn(*mut c_void, u64) -> c_int,
    pub lfht_free: unsafe extern "C" fn(*mut c_void) -> c_int,
}

#[allow(improper_ctypes)] // C only passes pointers on to what Rust 1.85 complains of
unsafe extern "C" {
    safe static reprieve_bench_memb_functions: Functions;
    safe static reprieve_bench_mb_functions: Functions;
    safe static reprieve_bench_qsbr_functions: Functions;
}

impl Flavor {
    /// Its functions.
    pub fn functions(self) -> &'static Functions {
        match self {
            Flavor::Memb => &reprieve_bench_memb_functions,
            Flavor::Mb => &reprieve_bench_mb_functions,
            Flavor::Qsbr => &reprieve_bench_qsbr_functions,
        }
    }
}

pub struct Urcu(pub &'static Functions);

impl Peer for Urcu {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        // SAFETY: nodes are freed after grace periods of this flavor.
        Box::new(unsafe { InC::new(self.0.loops, table, Thread::register(self.0, false)) })
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        Box::new(Registered(Thread::register(self.0, true), table))
    }
}

/// This thread, registered until this is dropped. Not `Send`.
pub struct Thread(pub &'static Functions, PhantomData<*mut ()>);

impl Thread {
    pub fn register(functions: &'static Functions, writer: bool) -> Thread {
        // SAFETY: unregistered on the same thread, since it cannot be sent to another.
        unsafe { (functions.register)(writer.into()) };
        Thread(functions, PhantomData)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: registered.
        unsafe { (self.0.unregister)() };
    }
}

struct Registered<'a>(Thread, &'a Table);

// SAFETY for all calls below: this thread is registered; nodes are freed after grace periods of
// this flavor.
impl Writer for Registered<'_> {
    fn replace(&mut self, key: u64) {
        // SAFETY: unlinked, and ours.
        unsafe { (self.0.0.retire)(self.1.replace(key, false)) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        // SAFETY: outside any section.
        wait_and_free(self.1.replace(key, false), || unsafe { (self.0.0.synchronize)() })
    }

    fn drain(&mut self) {
        // SAFETY: outside any section.
        unsafe { (self.0.0.barrier)() };
    }
}
