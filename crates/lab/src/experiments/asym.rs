// SPDX-License-Identifier: MIT OR Apache-2.0
//! `asym`: one vCPU produces garbage at full speed, the other shares its CPU with hogs.
//!
//! Under symmetric overcommit the producer of garbage is preempted as often as the reader for which
//! its grace periods wait, so memory does not grow. Here the producer has a CPU to itself: while a
//! grace period waits for the other vCPU, garbage piles up.

use super::guests::asym;
use super::{Experiment, Options, Size, Vms};

pub const ASYM: Experiment = Experiment {
    name: "asym",
    summary: "vCPU 1 frees 64 KiB at a time through call_rcu; others do short system calls",
    competition: "three hog VMs, all on the CPU of vCPU 0",
    source: "ours",
    vms,
    callback_probe_hz: 0,
};

fn vms(size: &Size, options: &Options) -> Vms {
    Ok(asym(size, options))
}
