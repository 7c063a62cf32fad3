// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiments: a guest alone on its host, then the same guest on an overcommitted host, on
//! stock kernels.
//!
//! Modules import only from the lines above their own:
//!
//! | modules | hold |
//! |---|---|
//! | [`error`], [`limit`], [`progress`], [`policy`], [`plan`] | errors, time limits, progress, policies, plans |
//! | [`dilation`] | how much slower a VM's clocks run |
//! | [`process`], [`experiments`] | child processes; from a request to a plan |
//! | [`watcher`], [`scheduler`], [`images`] | watching guests and scheduling them, from outside; kernels, QEMU, initramfs |
//! | [`costs`], [`sleeper`] | what a switch, an exit, an interrupt cost; a thread of the host that sleeps |
//! | [`record`], [`vm`] | the records of a run; one virtual machine |
//! | [`calibrate`] | measures the costs |
//! | [`recorder`], [`execute`], [`report`] | `raw.jsonl`; a plan on this machine; tables and HTML |
//! | [`host`] | this machine, or a lab host in which the program runs again |
//! | [`mod@run`] | a whole run |
//! | [`headroom`], [`search`] | the least memory that a guest survives in; its best boot parameters |

pub mod calibrate;
pub mod costs;
pub mod dilation;
pub mod error;
pub mod execute;
pub mod exits;
pub mod experiments;
pub mod headroom;
pub mod host;
pub mod images;
pub mod limit;
pub mod plan;
pub mod policy;
pub mod process;
pub mod progress;
pub mod record;
pub mod recorder;
pub mod report;
pub mod run;
pub mod scheduler;
pub mod search;
pub mod sleeper;
pub mod vm;
pub mod watcher;

pub use reprieve_init::protocol;
