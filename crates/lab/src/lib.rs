// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments: a guest alone on its host, then the same guest on an overcommitted host, on
//! stock kernels.
//!
//! `layers.txt` of crate `lint` has the order of the modules:
//!
//! | modules | hold |
//! |---|---|
//! | [`error`], [`limit`], [`progress`], [`policy`], [`plan`] | errors, time limits, progress, policies, plans |
//! | [`dilation`] | how much slower a VM's clocks run |
//! | [`process`], [`experiments`] | child processes; from a request to a plan |
//! | [`watcher`], [`scheduler`], [`images`] | watching guests and scheduling them, from outside; kernels, QEMU, initramfs |
//! | `guard_process` | guard in a process of its own |
//! | `ebpf_watcher`, `host_scheduler` | both, by crates `watch` and `guard` |
//! | [`costs`] | what a switch and an exit cost |
//! | [`record`], [`vm`] | the records of a run; one virtual machine |
//! | [`calibrate`] | measures the costs |
//! | [`recorder`], [`execute`], [`report`] | `raw.jsonl`; a plan on this machine; tables, summaries |
//! | [`host`] | this machine, or a lab host in which the program runs again |
//! | [`mod@run`] | a whole run |
//! | [`results`] | the matrix of results |
//! | [`check`] | whether `watch` and `guard` keep their promises |
//! | [`command`] | `reprieve lab`: arguments in, tables out |

pub mod args;
pub mod calibrate;
pub mod check;
pub mod command;
pub mod costs;
pub mod dilation;
mod ebpf_watcher;
pub mod error;
pub mod execute;
pub mod experiments;
mod guard_process;
pub mod host;
mod host_scheduler;
pub mod images;
pub mod limit;
pub mod plan;
pub mod policy;
pub mod process;
pub mod progress;
pub mod record;
pub mod recorder;
pub mod report;
pub mod results;
pub mod run;
pub mod scheduler;
pub mod signals;
mod unit;
pub mod vm;
pub mod watcher;

pub use reprieve_init::protocol;
