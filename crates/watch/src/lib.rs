// SPDX-License-Identifier: MIT OR Apache-2.0
//! `watch`: which critical sections of guests lose their CPU, and which vCPUs hold up a guest's
//! grace period, seen from the host.
//!
//! [`Watch`] turns what an eBPF program and guest memory say into [`model::Snapshot`]s and, when a
//! recording is made, [`model::Event`]s. [`show`] sees these types only. The eBPF program (`bpf/`)
//! is GPL-2.0, everything else MIT OR Apache-2.0.
//!
//! How it works: `crates/guest` finds out, once per boot of a guest, where its words are
//! (`preempt_count`, current task, `gp_seq`) in the VMM's memory. The program (`bpf/watch.bpf.c`)
//! reads them when a vCPU's thread loses its CPU, while that thread is still current, and counts
//! the time until it runs again, into an array that is mapped here: a snapshot costs no system call
//! per vCPU. Grace periods are timed by the same program, from the guest's `gp_seq`; who holds one
//! up is read from the guest's `rcu_node` tree when a snapshot is taken.
//!
//! Folders, lowest first: `raw` is the border to the kernel; `processes` reads processes that use
//! the runtime; `region` finds memory that a guest shares with the host; `vms` has the list of VMs
//! (`finder`, `discovery`), the state of each (`machine`, `qemu_registers`) and its entries in the
//! arrays that both sides map (`slots`); `snapshot` makes the data model of that (`view`,
//! `visibility`, `events`).

pub mod capabilities;
pub mod cgroup;
mod collector;
mod error;
pub mod model;
mod options;
mod processes;
pub mod raw;
mod region;
pub mod show;
mod snapshot;
pub mod vms;

pub use collector::{Watch, sees_host_processes};
pub use error::Error;
pub use options::{Options, Which, names};
pub use region::{Region, Writer};
pub use vms::stand_in::StandIn;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
