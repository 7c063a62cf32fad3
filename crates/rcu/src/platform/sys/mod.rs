// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. All are async-signal-safe: registration may happen in a signal handler.

mod clock;
mod cpus;
mod futex;
mod membarrier;
mod memory;
mod policy;
mod print;
mod signals;
mod thread;

pub(crate) use clock::*;
pub(crate) use cpus::*;
pub(crate) use futex::*;
pub(crate) use membarrier::*;
pub(crate) use memory::*;
pub(crate) use policy::*;
pub(crate) use print::*;
pub(crate) use signals::*;
pub(crate) use thread::*;
