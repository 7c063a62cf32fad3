// SPDX-License-Identifier: MIT OR Apache-2.0
//! System V IPC in user space: semaphores, message queues and shared memory across processes,
//! without a system call where nobody has to wait.
//!
//! A [`Namespace`] is a directory. Its methods are the System V calls, with their semantics and
//! errors; the preload library `libreprieve_ipc.so` gives them to programs as they are.
//!
//! # How it works
//! Bottom up: `space` maps a file and says what lies where; `peers` knows processes, threads and
//! their deaths; `lock` has robust locks and transactions; `heap` memory; `ids` finds objects in
//! read-side sections; `grace` frees what readers may still see; `queue` lets threads wait; `sem`
//! is what the calls do. `docs/ipc.md` states the invariants.

mod attachments;
mod bytes;
mod error;
mod file;
mod forks;
mod grace;
mod heap;
mod helper;
mod ids;
#[doc(hidden)]
pub mod kernel;
mod limits;
mod lock;
mod maps;
mod msg;
mod namespace;
mod object;
mod peers;
mod permission;
mod queue;
mod sem;
mod shm;
#[doc(hidden)]
pub mod signals;
mod space;
mod sys;
#[doc(hidden)]
pub mod users;

pub use error::{Errno, OpenError, Result};
#[doc(hidden)]
pub use forks::Fork;
pub use forks::forked;
pub use limits::Limits;
pub use msg::{MsgInfo, MsgStatus};
pub use namespace::{Namespace, Owner, Status};
#[doc(hidden)]
pub use permission::credentials_changed;
pub use sem::{MOST as MOST_SEM_VALUE, SemInfo, SemOp, SemStatus};
pub use shm::{SHM_DEST, SHM_LOCKED, ShmInfo, ShmStatus};
pub use space::default_directory;
#[doc(hidden)]
pub use space::{begin_ipc_namespace, ipc_namespace};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
