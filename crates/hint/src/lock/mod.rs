// SPDX-License-Identifier: MIT OR Apache-2.0
//! The locks. [`mutex`] is the spin lock and the mutex, [`rw`] the reader-writer lock and
//! semaphore, [`condition`] the shim's condition variable; [`api`](self::api) gives the locks the
//! interface of `lock_api`.
//!
//! Each module opens with its protocol and why nobody sleeps for ever; `model/` checks that with
//! loom, and that broken forms of it are caught.

pub(crate) mod condition;
pub(crate) mod mutex;
pub(crate) mod rw;
pub(crate) mod stamped;
pub(crate) mod word;

#[cfg(not(loom))]
pub(crate) mod api;
#[cfg(not(loom))]
mod mark;
#[cfg(not(loom))]
pub(crate) mod posix;

#[cfg(not(loom))]
pub use mark::{Mark, Sleeps, Spins};
