// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host's side of Reprieve: [`watch`] shows which critical sections of its VMs are preempted
//! and who holds up their grace periods; [`guard`] schedules them with regard to both. The eBPF
//! programs (`bpf/`) are GPL-2.0, everything else MIT OR Apache-2.0.

mod cgroup;
pub mod guard;
pub mod publish;
mod room;
#[cfg(feature = "show")]
pub mod show;
pub mod watch;
