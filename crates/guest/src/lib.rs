// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a running Linux guest from its host, with nothing installed in the guest.
//!
//! Guest RAM is a part of the VMM's memory. A kernel built for crash dumps (every distribution's)
//! keeps a page of text there with the addresses of its page tables and its symbol table
//! ([`kernel::vmcoreinfo`]). The symbol table leads to the types ([`kernel::btf`]) and to each
//! CPU's own variables ([`vcpu`]), and these to tasks and to RCU's state ([`rcu`]). Addresses and
//! offsets are computed once per boot, in [`Guest::attach`]; every later call reads live memory.
//!
//! Folders, lowest first: `vmm` finds VMs and their RAM, `memory` reads it, `kernel` parses what
//! the kernel tells about itself, `state` and `rcu` read a running kernel, `layout` has the
//! addresses for eBPF, `guest` puts all of it together.
//!
//! Guarantees:
//! - **Nothing is written**, and memory that the guest has not touched stays untouched: attaching
//!   does not make the VM larger.
//! - **The guest is not trusted.** It may be damaged or lie; then calls return errors, or wrong
//!   facts about that guest, and nothing worse: lengths and loops are bounded, text is made
//!   printable.
//! - **It runs meanwhile.** One field is read in one piece; several fields are of one moment only
//!   where a call says so.

pub mod error;
mod guest;
pub mod kernel;
pub mod layout;
pub mod memory;
pub mod rcu;
mod state;
pub mod vmm;

pub use error::{Error, Result};
pub use guest::Guest;
pub use guest::attach::{Options, Through};
pub use guest::liveness::Liveness;
pub use kernel::btf::Field;
pub use kernel::symbols::{Resolved, Symbol, Symbols};
pub use kernel::types::Types;
pub use layout::BpfLayout;
pub use memory::Memory;
pub use rcu::Rcu;
pub use rcu::grace::{BlockedReader, Model, Owing, Preemption};
pub use state::modules::Module;
pub use state::settings::{Settings, Use};
pub use state::task::{self, Task};
pub use state::vcpu::{self, PreemptBits};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
