// SPDX-License-Identifier: MIT OR Apache-2.0
//! RCU whose grace periods do not wait for preempted readers.
//!
//! Read-copy update lets readers follow pointers without locks while writers replace what the
//! pointers lead to. A writer unlinks the old node, waits for a *grace period*, after which no
//! reader can still be looking at it, and frees it. The grace period is the price: where every
//! other implementation waits until each reader has left its section, a reader that lost its CPU in
//! the middle holds everyone up for as long as the scheduler pleases, and garbage piles up behind
//! it.
//!
//! # The idea
//! A short lookup need not be *waited for*. It can be *started over*. Linux's restartable sequences
//! (rseq) send a thread that is preempted inside a marked range of instructions to an abort handler
//! before it executes another one, and the membarrier system call sends every running thread of the
//! process out of such a range at once. So: unlink; one membarrier; free. Whoever was in the middle
//! of a lookup, running or not, starts over, and cannot find the node again.
//!
//! # Three ways to read
//! - A **plain section** ([`read_lock`]): a reference may be used as long as the guard lives. A
//!   load, an addition and a store to enter and to leave; no atomic read-modify-write, no fence.
//!   Grace periods wait for it. [`Qsbr`] is the form in which the thread announces quiescent states
//!   and entering costs nothing.
//! - A **restartable lookup** ([`Domain::lookup`]): a traversal that returns a copied value. No
//!   grace period ever waits for it.
//! - A **protected reference** ([`Domain::protect`]): a restartable lookup whose last act puts the
//!   node's address into a slot of the thread. The reference may be held for any time, across
//!   system calls; it keeps that node alive and nothing else.
//!
//! Where restartable sections do not work (see [`support`]), the last two run in plain sections.
//!
//! # The smallest example
//! One pointer to one node, read in each of the three ways. (Structures that hide the `unsafe` are
//! built on this.)
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
//! Each folder of `src` stands only on those before it in this list, and each module that holds a
//! protocol opens with its guarantees and their proof:
//! - `platform`: system calls, facts about the process, start-up (`start`), the light half of the
//!   asymmetric fence (`barrier`);
//! - `thread`: the reader's word, and why entering needs no fence (`record`), registration
//!   (`registry`), protection (`slots`), callback buffers (`buffer`);
//! - `read`: the restartable section (`restart`) and its machine code (`restart/x86_64.rs`);
//! - `grace`: the numbers of grace periods and their leaders (`sequence`), what a grace period does
//!   (`engine`), the heavy half of the fence (`heavy`), readers that hold one up ([`watch`]);
//! - `callback`: lists, workers, the caps;
//! - `domain`: the public type, and what a fork does (`fork`);
//! - `structures`: [`structures`], built on the public interface.
//!
//! `model` checks the same source with loom.
//!
//! # What happens when
//! - **A thread exits**, at any point: its guards are dropped, and its place is free. What it has
//!   leaked stays open until the domain is dropped: other threads may have references from there.
//!   (Sections that C leaves open end, in threads that read from C alone.) A thread that is killed
//!   without its destructors, by a bare `exit` system call, is noticed and forgotten:
//!   [`Domain::set_forget_dead`].
//! - **A section does not end**: the reader is reported, see [`Domain::set_stall_timeout`].
//! - **The process forks**: the child goes on with the forking thread's sections; waiting callbacks
//!   run in both. See `domain/fork.rs`.
//! - **The process exits**: callbacks that wait are not run. Call [`rcu_barrier`] first if they do
//!   more than free memory.
//! - **A callback registers another**: allowed, without end; [`rcu_barrier`] waits for those
//!   registered before it.
//! - **A domain loses its last owner**: the drop waits for the domain's callbacks. In a callback it
//!   returns at once, and a thread waits in its place.
//! - **A signal handler** may enter plain sections, look up and protect, even as the first user in
//!   its thread. It drops its guards before it returns: the interrupted code may be about to fill
//!   the same slot, or to write the nesting count. It may not register
//!   callbacks or wait for grace periods.
//! - **`dlclose`**: the image that contains this crate stays loaded. Functions registered as
//!   callbacks must stay loaded until they have run ([`rcu_barrier`]).

#![cfg_attr(
    loom,
    allow(dead_code, reason = "a model uses the protocols, not what is built on them")
)]

#[cfg(not(any(target_os = "linux", target_os = "freebsd", target_vendor = "apple")))]
compile_error!("this crate needs Linux, or with plain sections alone FreeBSD or macOS");

mod callback;
mod grace;
mod platform;
pub mod structures;
mod thread;

#[cfg(not(loom))]
#[doc(hidden)]
pub mod abi;
#[cfg(not(loom))]
mod domain;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod inspect;
#[cfg(not(loom))]
mod read;

#[cfg(loom)]
mod model;

#[cfg(not(loom))]
pub use callback::limits::Cap;
#[cfg(not(loom))]
pub use domain::default::{
    call_rcu, lookup, protect, rcu_barrier, read_lock, synchronize_kernel, synchronize_rcu,
    synchronize_rcu_expedited,
};
#[cfg(not(loom))]
pub use domain::{Builder, Cookie, Domain, Engine};
#[cfg(not(loom))]
pub use error::Error;
#[cfg(not(loom))]
pub use grace::stats::{BUCKETS, Latency, Stats};
pub use grace::watch;
#[cfg(not(loom))]
pub use platform::facts::Restartable;
#[cfg(not(loom))]
pub use read::guard::{Guard, Qsbr, QsbrGuard, ReadSide};
#[cfg(not(loom))]
pub use read::protected::{AnyThread, OwnedProtected, Protected, ThisThread};
#[cfg(not(loom))]
pub use read::restart::section::{Section, Word};
#[cfg(not(loom))]
pub use read::restart::traversal::{Part, Traversal};
#[cfg(not(loom))]
pub use read::restart::{Lookup, RESTARTS};
#[cfg(not(loom))]
pub use read::support::{Support, support};
#[cfg(not(loom))]
pub use thread::head::{Function, Head};
#[cfg(not(loom))]
pub use thread::id::{DomainId, MAX_DOMAINS};

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Guide;
