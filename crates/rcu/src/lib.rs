// SPDX-License-Identifier: MIT OR Apache-2.0
//! RCU whose grace periods do not wait for preempted readers.
//!
//! Read-copy update lets readers follow pointers without locks while writers replace what the pointers lead to. A writer unlinks the old
//! node, waits for a *grace period*, after which no reader can still be looking at it, and frees it. The grace period is the
//! price: where every other implementation waits until each reader has left its section, a reader that lost its CPU in the middle holds everyone up for as long as
//! the scheduler pleases, and garbage piles up behind it.
//!
//! # The idea
//! A short lookup need not be *waited for*. It can be *started over*. Linux's restartable sequences (rseq) send a thread that is preempted
//! inside a marked range of instructions to an abort handler before it executes another one, and the membarrier system call sends every running thread of the
//! process out of such a range at once. So: unlink; one membarrier; free. Whoever was in the middle of a lookup, running or not, starts over, and cannot
//! find the node again.
//!
//! # Three ways to read
//! - A **plain section** ([`read_lock`]): a reference may be used as long as the guard lives. A load, an addition and a store to enter and to leave; no atomic read-modify-write, no fence. Grace
//!   periods wait for it. [`Qsbr`] is the form in which the thread announces quiescent states and entering costs nothing.
//! - A **restartable lookup** ([`Domain::lookup`]): a traversal that returns a copied value. No grace period ever waits for it.
//! - A **protected reference** ([`Domain::protect`]): a restartable lookup whose last act puts the node's address into a slot of the
//!   thread's. The reference may be held for any time, across system calls; it keeps alive that node and nothing else.
//!
//! Where restartable sections do not work (see [`support`]), the last two run in plain sections.
//!
//! # The least there is
//! One pointer to one node, read in each of the three ways. (Structures that hide the `unsafe` are built on this.)
//!
//! ```
//! use reprieve::{Domain, Lookup, ReadSide, Section};
//! use std::sync::atomic::{AtomicPtr, Ordering};
//!
//! struct Config { limit: u64 }
//! static CONFIG: AtomicPtr<Config> = AtomicPtr::new(std::ptr::null_mut());
//!
//! struct Find;
//! // SAFETY: one load through the section, always inlined.
//! unsafe impl Lookup for Find {
//!     type Output = *const Config;
//!     #[inline(always)]
//!     unsafe fn run(&self, section: &Section) -> *const Config {
//!         section.load(&CONFIG)
//!     }
//! }
//!
//! struct Limit;
//! // SAFETY: two loads through the section, always inlined.
//! unsafe impl Lookup for Limit {
//!     type Output = u64;
//!     #[inline(always)]
//!     unsafe fn run(&self, section: &Section) -> u64 {
//!         let config = section.load(&CONFIG);
//!         unsafe { section.read(&raw const (*config).limit) }
//!     }
//! }
//!
//! let domain = Domain::global();
//! CONFIG.store(Box::into_raw(Box::new(Config { limit: 1 })), Ordering::Release);
//!
//! // SAFETY, here and below: configurations are reclaimed through the default domain only, by `retire_box`.
//! unsafe {
//!     // A plain section.
//!     let section = reprieve::read_lock();
//!     assert_eq!((*section.section().load(&CONFIG)).limit, 1);
//!     drop(section);
//!     // A restartable lookup.
//!     assert_eq!(domain.lookup(&Limit), 1);
//!     // A protected reference, which survives the update.
//!     let config = domain.protect(&Find).unwrap();
//!     let old = CONFIG.swap(Box::into_raw(Box::new(Config { limit: 2 })), Ordering::AcqRel);
//!     domain.retire_box(Box::from_raw(old));
//!     assert_eq!((config.limit, domain.lookup(&Limit)), (1, 2));
//! }
//! domain.barrier()?;
//! assert_eq!(domain.stats().waiting, 0);
//! # Ok::<(), reprieve::Error>(())
//! ```
//!
//! # Where the arguments are
//! Each module that holds a protocol opens with what it guarantees and why:
//! `record` (the reader's word, and why entering needs no fence), `registry` (threads come and go), `engine` (what a grace period does), `grace` (sharing
//! them), `restart` (the restartable section) with `restart::x86_64` (its machine code), `slots` (protection), `callback`
//! (lists, workers, the cap), `thread` and `fork` (beginnings and ends), [`watch`] (whom grace periods wait for). `model/` checks the same source with loom.
//!
//! # What happens when
//! - **A thread exits**, at any point: its sections and protections end. (Leaked guards included.) One that is killed without its destructors, by a
//!   bare `exit` system call, is noticed and forgotten: [`Domain::set_forget_dead`].
//! - **A section does not end**: the reader is reported, see [`Domain::set_stall_timeout`].
//! - **The process forks**: the child goes on with the forking thread's sections; waiting callbacks run in both. See `fork`.
//! - **The process exits**: callbacks that wait are not run. Call [`rcu_barrier`] first if they do more than free memory.
//! - **A callback registers another**: allowed, without end; [`rcu_barrier`] waits for those registered before it.
//! - **A signal handler** may enter plain sections, look up and protect, even as the first user in its thread. It
//!   drops its guards before it returns: code that it interrupted may be about to fill the slot, or write the count, that a guard
//!   kept longer relies on. It may not register callbacks or wait for grace periods.
//! - **`dlclose`**: the image that contains this crate stays loaded. Functions registered as callbacks must stay loaded until they have
//!   run ([`rcu_barrier`]).

#![cfg_attr(
    loom,
    allow(dead_code, reason = "a model uses the protocols, not what is built on them")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("this crate needs Linux: membarrier and rseq are its system calls");

mod barrier;
mod callback;
mod engine;
mod grace;
mod link;
mod record;
mod registry;
mod slots;
mod stats;
pub mod structures;
mod sync;
mod visit;
mod wanted;
pub mod watch;

#[cfg(not(loom))]
#[doc(hidden)]
pub mod abi;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod error;
#[cfg(all(reprieve_fault, not(loom)))]
mod fault;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod guard;
#[cfg(not(loom))]
mod inspect;
#[cfg(not(loom))]
mod restart;
#[cfg(not(loom))]
mod startup;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod thread;

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
mod api {
    pub use crate::callback::cap::Cap;
    pub use crate::callback::{Function, Head};
    pub use crate::domain::{Builder, Cookie, Domain, Engine};
    pub use crate::error::Error;
    pub use crate::guard::{DomainId, Guard, Protected, Qsbr, QsbrGuard, ReadSide};
    pub use crate::restart::section::{Section, Word};
    pub use crate::restart::{Lookup, RESTARTS};
    pub use crate::startup::Restartable;
    pub use crate::stats::{BUCKETS, Latency, Stats};
    pub use crate::thread::MAX_DOMAINS;

    use crate::domain::Global;

    /// What this process can do. Runs the self-test of restartable sections if nothing has yet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Support {
        /// Readers execute no fence; grace periods use membarrier.
        pub membarrier: bool,
        /// Whether lookups use restartable sections, or why not.
        pub restartable: Restartable,
    }

    /// See [`Support`].
    pub fn support() -> Support {
        let restartable = crate::startup::restartable();
        Support { membarrier: !crate::startup::fenced(), restartable }
    }

    /// Begins a plain section of the default domain. See [`Domain::read_lock`].
    #[inline(always)]
    pub fn read_lock() -> Guard<'static> {
        Guard::new(DomainId::GLOBAL)
    }

    /// Runs a restartable lookup in the default domain.
    ///
    /// # Safety
    /// As for [`Domain::lookup`].
    #[inline(always)]
    pub unsafe fn lookup<L: Lookup>(lookup: &L) -> L::Output {
        // SAFETY: the caller's promise.
        unsafe { crate::restart::lookup(Global, lookup) }
    }

    /// Finds and protects a node of the default domain.
    ///
    /// # Safety
    /// As for [`Domain::protect`].
    #[inline(always)]
    pub unsafe fn protect<T, L: Lookup<Output = *const T>>(
        lookup: &L,
    ) -> Option<Protected<'static, T>> {
        // SAFETY: the caller's promise; the node found is in the slot.
        unsafe {
            let (node, slot) = crate::restart::protect(Global, lookup);
            std::ptr::NonNull::new(node.cast_mut()).map(|node| Protected::new(node, slot))
        }
    }

    /// Waits for a grace period of the default domain. See [`Domain::synchronize`].
    pub fn synchronize_rcu() {
        Domain::global().synchronize();
    }

    /// [`synchronize_rcu`] under the name it has in the FREENIX 2003 paper.
    pub fn synchronize_kernel() {
        synchronize_rcu();
    }

    /// See [`Domain::synchronize_expedited`].
    pub fn synchronize_rcu_expedited() {
        Domain::global().synchronize_expedited();
    }

    /// Registers a callback in the default domain.
    ///
    /// # Safety
    /// As for [`Domain::call_rcu`].
    pub unsafe fn call_rcu(head: *mut Head, function: Function, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { Domain::global().call_rcu(head, function, bytes) }
    }

    /// Waits for the callbacks of the default domain. See [`Domain::barrier`].
    ///
    /// # Errors
    /// As [`Domain::barrier`].
    pub fn rcu_barrier() -> Result<(), Error> {
        Domain::global().barrier()
    }
}
#[cfg(not(loom))]
pub use api::*;

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Guide;
