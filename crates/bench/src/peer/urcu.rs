// SPDX-License-Identifier: MIT OR Apache-2.0
//! liburcu's flavors, through the functions of `c/flavor.h`.

use super::{Peer, Reader, Writer, wait_and_free};
use crate::error::Result;
use crate::subject::Flavor;
use crate::table::{Chains, Node, Table};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// What `c/flavor.h` defines for each flavor.
pub struct Functions {
    empty: unsafe extern "C" fn(u64),
    lookups: unsafe extern "C" fn(*const Chains, *mut u64, u64) -> u64,
    gets: unsafe extern "C" fn(*const Chains, u64) -> u64,
    walks: unsafe extern "C" fn(*const Chains, u64, u64) -> u64,
    pub register: unsafe extern "C" fn(c_int),
    pub unregister: unsafe extern "C" fn(),
    synchronize: unsafe extern "C" fn(),
    retire: unsafe extern "C" fn(*mut Node),
    pub barrier: unsafe extern "C" fn(),
    pub per_cpu: unsafe extern "C" fn() -> c_int,
    pub no_per_cpu: unsafe extern "C" fn(),
    pub slot_size: unsafe extern "C" fn() -> u64,
    pub register_slots: unsafe extern "C" fn(*mut c_void, u64),
    pub check_slots: unsafe extern "C" fn(*const c_void, u64) -> u64,
}

macro_rules! flavor {
    ($module:ident: $empty:ident $lookups:ident $gets:ident $walks:ident $register:ident $unregister:ident $synchronize:ident
     $retire:ident $barrier:ident $per_cpu:ident $no_per_cpu:ident $slot_size:ident $register_slots:ident $check_slots:ident) => {
        mod $module {
            use super::*;
            unsafe extern "C" {
                fn $empty(n: u64);
                fn $lookups(chains: *const Chains, seed: *mut u64, n: u64) -> u64;
                fn $gets(chains: *const Chains, n: u64) -> u64;
                fn $walks(chains: *const Chains, sum: u64, n: u64) -> u64;
                fn $register(writer: c_int);
                fn $unregister();
                fn $synchronize();
                fn $retire(node: *mut Node);
                fn $barrier();
                fn $per_cpu() -> c_int;
                fn $no_per_cpu();
                fn $slot_size() -> u64;
                fn $register_slots(slots: *mut c_void, n: u64);
                fn $check_slots(slots: *const c_void, n: u64) -> u64;
            }
            pub static FUNCTIONS: Functions = Functions {
                empty: $empty,
                lookups: $lookups,
                gets: $gets,
                walks: $walks,
                register: $register,
                unregister: $unregister,
                synchronize: $synchronize,
                retire: $retire,
                barrier: $barrier,
                per_cpu: $per_cpu,
                no_per_cpu: $no_per_cpu,
                slot_size: $slot_size,
                register_slots: $register_slots,
                check_slots: $check_slots,
            };
        }
    };
}
flavor!(memb: reprieve_bench_memb_empty reprieve_bench_memb_lookups reprieve_bench_memb_gets reprieve_bench_memb_walks reprieve_bench_memb_register reprieve_bench_memb_unregister reprieve_bench_memb_synchronize reprieve_bench_memb_retire reprieve_bench_memb_barrier reprieve_bench_memb_per_cpu reprieve_bench_memb_no_per_cpu reprieve_bench_memb_slot_size reprieve_bench_memb_register_slots reprieve_bench_memb_check_slots);
flavor!(mb: reprieve_bench_mb_empty reprieve_bench_mb_lookups reprieve_bench_mb_gets reprieve_bench_mb_walks reprieve_bench_mb_register reprieve_bench_mb_unregister reprieve_bench_mb_synchronize reprieve_bench_mb_retire reprieve_bench_mb_barrier reprieve_bench_mb_per_cpu reprieve_bench_mb_no_per_cpu reprieve_bench_mb_slot_size reprieve_bench_mb_register_slots reprieve_bench_mb_check_slots);
flavor!(qsbr: reprieve_bench_qsbr_empty reprieve_bench_qsbr_lookups reprieve_bench_qsbr_gets reprieve_bench_qsbr_walks reprieve_bench_qsbr_register reprieve_bench_qsbr_unregister reprieve_bench_qsbr_synchronize reprieve_bench_qsbr_retire reprieve_bench_qsbr_barrier reprieve_bench_qsbr_per_cpu reprieve_bench_qsbr_no_per_cpu reprieve_bench_qsbr_slot_size reprieve_bench_qsbr_register_slots reprieve_bench_qsbr_check_slots);
flavor!(bp: reprieve_bench_bp_empty reprieve_bench_bp_lookups reprieve_bench_bp_gets reprieve_bench_bp_walks reprieve_bench_bp_register reprieve_bench_bp_unregister reprieve_bench_bp_synchronize reprieve_bench_bp_retire reprieve_bench_bp_barrier reprieve_bench_bp_per_cpu reprieve_bench_bp_no_per_cpu reprieve_bench_bp_slot_size reprieve_bench_bp_register_slots reprieve_bench_bp_check_slots);

impl Flavor {
    /// Its functions.
    pub fn functions(self) -> &'static Functions {
        match self {
            Flavor::Memb => &memb::FUNCTIONS,
            Flavor::Mb => &mb::FUNCTIONS,
            Flavor::Qsbr => &qsbr::FUNCTIONS,
            Flavor::Bp => &bp::FUNCTIONS,
        }
    }
}

pub struct Urcu(pub &'static Functions);

impl Peer for Urcu {
    fn reader<'a>(&'a self, table: &'a Table) -> Box<dyn Reader + 'a> {
        // SAFETY: `Registered` unregisters on the same thread: it cannot be sent to another one, since it is boxed as a trait object that is not `Send`.
        unsafe { (self.0.register)(0) };
        Box::new(Registered(self.0, table))
    }

    fn writer<'a>(&'a self, table: &'a Table) -> Box<dyn Writer + 'a> {
        // SAFETY: as above.
        unsafe { (self.0.register)(1) };
        Box::new(Registered(self.0, table))
    }
}

struct Registered<'a>(&'static Functions, &'a Table);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread was registered by `Urcu`.
        unsafe { (self.0.unregister)() };
    }
}

// SAFETY for all calls below: this thread is registered; the table has the layout that C expects, and its nodes are freed after
// grace periods of this flavor.
impl Reader for Registered<'_> {
    fn empty(&mut self, n: u64) {
        // SAFETY: see above.
        unsafe { (self.0.empty)(n) };
    }

    fn lookups(&mut self, seed: &mut u64, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.0.lookups)(self.1.chains(), seed, n) }
    }

    fn gets(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.0.gets)(self.1.chains(), n) }
    }

    fn walks(&mut self, n: u64) -> u64 {
        // SAFETY: see above.
        unsafe { (self.0.walks)(self.1.chains(), self.1.sum(), n) }
    }
}

impl Writer for Registered<'_> {
    fn replace(&mut self, key: u64) {
        // SAFETY: unlinked, and ours.
        unsafe { (self.0.retire)(self.1.replace(key, false)) };
    }

    fn replace_and_wait(&mut self, key: u64) -> Result<Duration> {
        // SAFETY: outside any section.
        wait_and_free(self.1.replace(key, false), || unsafe { (self.0.synchronize)() })
    }

    fn drain(&mut self) {
        // SAFETY: outside any section.
        unsafe { (self.0.barrier)() };
    }
}
