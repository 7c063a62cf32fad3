// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls. All are async-signal-safe: registration may happen in a signal handler.

mod clock;
#[cfg(target_os = "linux")]
mod cpus;
#[cfg(target_os = "linux")]
mod futex;
#[cfg(target_os = "linux")]
mod membarrier;
mod memory;
#[cfg(not(target_os = "linux"))]
mod other;
#[cfg(target_os = "linux")]
mod policy;
mod print;
mod signals;
mod thread;

pub(crate) use clock::*;
#[cfg(target_os = "linux")]
pub(crate) use cpus::*;
#[cfg(target_os = "linux")]
pub(crate) use futex::*;
#[cfg(target_os = "linux")]
pub(crate) use membarrier::*;
pub(crate) use memory::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::*;
#[cfg(target_os = "linux")]
pub(crate) use policy::*;
pub(crate) use print::*;
pub(crate) use signals::*;
pub(crate) use thread::*;
